// The horizontal recurrence of one side with its spherical transformation, as a list of row operations.
//
// (a b+1_i| = (a+1_i b| + AB_i (a b|, then Cartesian to spherical on b and on a. The tape serves every angular momentum, Cartesian and
// spherical, forwards (integrals) and transposed (densities for gradients); the generated straight-line code of low classes is checked against it.
#pragma once
#include <vector>

namespace jaxqc {

struct HrrTape {
  struct Shift {  // row[out] = row[up] + AB[axis] * row[same]
    int out, up, same, axis;
  };
  struct Sum {  // row[out] = sum over terms [begin, end) of weight * row[source]
    int out, begin, end;
  };
  struct Term {
    int source;
    double weight;
  };
  int la, lb, inputs, outputs, rows;  // rows: inputs first, then temporaries, then the outputs at first_output
  int first_output;
  std::vector<int> first_of_level;    // row of (a, b) for the first components a of la and b of level l
  std::vector<int> shifts_to_level;   // number of shifts that complete the rows up to level l of b
  std::vector<Shift> shifts;
  std::vector<Sum> sums;  // after all shifts, in order
  std::vector<Term> terms;
};

const HrrTape& hrr_tape(int la, int lb, bool cart);

// Cartesian-to-spherical coefficients of one shell, [spherical][Cartesian], in PySCF's order and normalisation (identity for s and p).
const std::vector<double>& spherical_matrix(int l);

}  // namespace jaxqc

// All single and double excitations of a configuration with their matrix elements: tables of doubles are sorted by magnitude, so that
// a threshold cuts each row at a prefix; singles depend on the whole configuration and are evaluated.
#pragma once
#include <cmath>

#include "ci_strings.h"

namespace jaxqc::ci {

struct Tables {
  int norb;
  const double* one;      // (norb, norb) h_pa
  const double* coulomb;  // (norb, norb, norb) (pa|qq)
  const double* like;     // (norb, norb, norb) (pa|qq) - (pq|qa)
  const double* bound;    // (norb, norb) no element of a single p -> a is larger
  const int32_t* like_start;    // rows p < q in the order of their pairs, targets a < b
  const int32_t* like_target;   // a | b << 16
  const double* like_value;     // (pa|qb) - (pb|qa)
  const int32_t* unlike_start;  // rows p * norb + q, alpha p -> a, beta q -> b
  const int32_t* unlike_target;
  const double* unlike_value;  // (pa|qb)
};

// What a configuration's excitations need to know about it.
template <int V>
struct Source {
  Strings<V> strings;
  int count[2];
  int occupied[2][64 * V];
  int below[2][64 * V];  // electrons in lower orbitals

  Source(const Strings<V>& c, int norb) : strings(c) {
    for (int s = 0; s < 2; ++s) {
      int n = 0;
      for (int p = 0; p < norb; ++p) {
        below[s][p] = n;
        if (c.has(s, p)) occupied[s][n++] = p;
      }
      count[s] = n;
    }
  }
  // Electrons strictly between p (occupied) and a (empty).
  int between(int s, int p, int a) const { return a > p ? below[s][a] - below[s][p] - 1 : below[s][p] - below[s][a]; }
};

template <int V>
double single_element(const Tables& t, const Source<V>& source, int spin, int p, int a) {
  const int64_t row = static_cast<int64_t>(p) * t.norb + a;
  const double *like = t.like + row * t.norb, *coulomb = t.coulomb + row * t.norb;
  double value = t.one[row];
  for (int k = 0; k < source.count[spin]; ++k) value += like[source.occupied[spin][k]];
  for (int k = 0; k < source.count[1 - spin]; ++k) value += coulomb[source.occupied[1 - spin][k]];
  return value;
}

// <i|H|i> without the constant.
template <int V>
double diagonal_element(const Tables& t, const Strings<V>& c) {
  int occupied[2][64 * V], count[2] = {0, 0};
  for (int s = 0; s < 2; ++s) {
    for (int v = 0; v < V; ++v)
      for (uint64_t w = c.word[s][v]; w != 0; w &= w - 1) occupied[s][count[s]++] = 64 * v + __builtin_ctzll(w);
  }
  double one = 0, two = 0, mixed = 0;
  for (int s = 0; s < 2; ++s) {
    for (int k = 0; k < count[s]; ++k) {
      const int64_t p = occupied[s][k], row = (p * t.norb + p) * t.norb;
      one += t.one[p * t.norb + p];
      for (int m = 0; m < k; ++m) two += t.like[row + occupied[s][m]];
      if (s == 0)
        for (int m = 0; m < count[1]; ++m) mixed += t.coulomb[row + occupied[1][m]];
    }
  }
  return one + two + mixed;
}

// emit_single(spin, p, a, element, sign, configuration) for each single, emit_double(like, spin, p, q, a, b, element, sign, configuration) for
// each double (alpha p -> a and beta q -> b where not like), with |element| > threshold. Elements are without their sign.
template <int V, class EmitSingle, class EmitDouble>
void excite(const Tables& t, const Source<V>& source, double threshold, EmitSingle&& emit_single, EmitDouble&& emit_double) {
  const int norb = t.norb;
  for (int s = 0; s < 2; ++s) {
    for (int k = 0; k < source.count[s]; ++k) {
      const int p = source.occupied[s][k];
      for (int a = 0; a < norb; ++a) {
        if (source.strings.has(s, a) || !(t.bound[p * norb + a] > threshold)) continue;
        const double value = single_element(t, source, s, p, a);
        if (!(std::abs(value) > threshold)) continue;
        Strings<V> c = source.strings;
        c.flip(s, p);
        c.flip(s, a);
        emit_single(s, p, a, value, source.between(s, p, a) & 1 ? -1.0 : 1.0, c);
      }
    }
  }
  for (int s = 0; s < 2; ++s) {
    for (int l = 1; l < source.count[s]; ++l) {
      const int q = source.occupied[s][l];
      for (int k = 0; k < l; ++k) {
        const int p = source.occupied[s][k];
        const int64_t row = static_cast<int64_t>(p) * (2 * norb - p - 1) / 2 + q - p - 1;
        for (int32_t e = t.like_start[row]; e < t.like_start[row + 1]; ++e) {
          const double value = t.like_value[e];
          if (!(std::abs(value) > threshold)) break;
          const int a = t.like_target[e] & 0xFFFF, b = t.like_target[e] >> 16;
          if (source.strings.has(s, a) || source.strings.has(s, b)) continue;
          // p moves to a first, which changes what is between q and b.
          const int low = q < b ? q : b, high = q < b ? b : q;
          const int crossed = source.between(s, p, a) + source.between(s, q, b) + (p > low && p < high) + (a > low && a < high);
          Strings<V> c = source.strings;
          c.flip(s, p);
          c.flip(s, q);
          c.flip(s, a);
          c.flip(s, b);
          emit_double(true, s, p, q, a, b, value, crossed & 1 ? -1.0 : 1.0, c);
        }
      }
    }
  }
  for (int k = 0; k < source.count[0]; ++k) {
    const int p = source.occupied[0][k];
    for (int l = 0; l < source.count[1]; ++l) {
      const int q = source.occupied[1][l];
      const int64_t row = static_cast<int64_t>(p) * norb + q;
      for (int32_t e = t.unlike_start[row]; e < t.unlike_start[row + 1]; ++e) {
        const double value = t.unlike_value[e];
        if (!(std::abs(value) > threshold)) break;
        const int a = t.unlike_target[e] & 0xFFFF, b = t.unlike_target[e] >> 16;
        if (source.strings.has(0, a) || source.strings.has(1, b)) continue;
        Strings<V> c = source.strings;
        c.flip(0, p);
        c.flip(0, a);
        c.flip(1, q);
        c.flip(1, b);
        emit_double(false, 0, p, q, a, b, value, (source.between(0, p, a) + source.between(1, q, b)) & 1 ? -1.0 : 1.0, c);
      }
    }
  }
}

}  // namespace jaxqc::ci

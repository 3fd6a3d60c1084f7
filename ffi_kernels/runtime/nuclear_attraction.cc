// Integrals of 1/|r - C| and its derivatives over two lists of contracted shells, as XLA FFI handlers.
//
//   jaxqc_nuclear          sum_Cn w[C,n] (a| d^n/dC^n 1/|r - C| |b)
//   jaxqc_nuclear_weights  its transpose in w: sum_ab G_ab (a| d^n/dC^n 1/|r - C| |b)
//
// For each pair of primitives the points are summed in the Hermite basis, eight at a time, before (or, for the
// transpose, after) the one transformation between Hermite and Cartesian functions.
#include <algorithm>
#include <string>

#include "one_electron.h"

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
// One clone per instruction set, chosen when the library is loaded: the library runs on any x86-64.
#define JAXQC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define JAXQC_CLONES
#endif
#define JAXQC_INLINE inline __attribute__((always_inline))

namespace ffi = xla::ffi;

namespace jaxqc::one_electron {
namespace {

// How R_{tuv} follows from two lower ones: R(n)_{i} = X_axis R(n+1)_{first} + factor R(n+1)_{second}.
struct HermiteStep {
  int axis, first, second;
  double factor;
};

std::vector<HermiteStep> make_hermite_steps() {
  std::vector<HermiteStep> steps(hermite_size(kBoysMaxOrder));
  for (int degree = 1; degree <= kBoysMaxOrder; ++degree) {
    for (int t = degree; t >= 0; --t) {
      for (int u = degree - t; u >= 0; --u) {
        int index[3] = {t, u, degree - t - u};
        // Any axis with a non-zero index serves; the smallest non-zero one saves the second term most often.
        int axis = -1;
        for (int d = 0; d < 3; ++d) {
          if (index[d] > 0 && (axis < 0 || index[d] < index[axis])) axis = d;
        }
        HermiteStep step{axis, 0, 0, static_cast<double>(index[axis] - 1)};
        const int here = hermite_index(index[0], index[1], index[2]);
        --index[axis];
        step.first = hermite_index(index[0], index[1], index[2]);
        if (--index[axis] >= 0) step.second = hermite_index(index[0], index[1], index[2]);
        steps[here] = step;
      }
    }
  }
  return steps;
}

const std::vector<HermiteStep>& hermite_steps() {
  static const std::vector<HermiteStep> steps = make_hermite_steps();
  return steps;
}

constexpr int kLanes = 8;
// Aligned as a double, so that packs may lie in any array of doubles (PackArray still places them well).
typedef double Pack __attribute__((vector_size(8 * kLanes), aligned(8), may_alias));

// Packs that begin at a cache line.
class PackArray {
 public:
  explicit PackArray(size_t count) : storage_(count * kLanes + 8) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    first_ = storage_.data() + (64 - address % 64) % 64 / 8;
  }
  Pack* data() { return reinterpret_cast<Pack*>(first_); }

 private:
  std::vector<double> storage_;
  double* first_;
};

// Point charges (or derivatives of 1/|r - C|) in packs of eight, padded with points of weight zero.
struct Points {
  int packs = 0, components = 0;
  std::vector<int> source;                    // the point in each lane, -1 for padding
  std::vector<double> coordinates, weights;   // [pack][3][lane], [pack][component][lane]
};

Points make_points(const double* coordinates, const double* weights, int count, int components) {
  Points points;
  points.components = components;
  for (int c = 0; c < count; ++c) {
    const double* w = weights ? weights + c * components : nullptr;
    // Points of weight zero (ghost atoms) drop out.
    if (w && std::all_of(w, w + components, [](double x) { return x == 0; })) continue;
    points.source.push_back(c);
  }
  points.packs = static_cast<int>((points.source.size() + kLanes - 1) / kLanes);
  points.source.resize(static_cast<size_t>(points.packs) * kLanes, -1);
  points.coordinates.resize(points.source.size() * 3);
  points.weights.resize(points.source.size() * components);
  for (size_t i = 0; i < points.source.size(); ++i) {
    const size_t pack = i / kLanes, lane = i % kLanes;
    const int c = points.source[i];
    for (int d = 0; d < 3; ++d) {
      points.coordinates[(pack * 3 + d) * kLanes + lane] = coordinates[3 * (c < 0 ? points.source[0] : c) + d];
    }
    for (int k = 0; k < components; ++k) {
      points.weights[(pack * components + k) * kLanes + lane] = c < 0 || !weights ? 0.0 : weights[c * components + k];
    }
  }
  return points;
}

JAXQC_INLINE void load(const double* values, Pack& pack) { __builtin_memcpy(&pack, values, sizeof(Pack)); }

// F_0 ... F_order for eight arguments.
JAXQC_INLINE void boys_pack(const double* table, int order, const Pack& t, Pack* values) {
  bool small = false, large = false;
  for (int l = 0; l < kLanes; ++l) (t[l] < kBoysRange ? small : large) = true;
  if (small) {
    const double* entry[kLanes];
    Pack step, inside;
    for (int l = 0; l < kLanes; ++l) {
      const double x = t[l] < kBoysRange ? t[l] : 0.0;
      const int row = static_cast<int>(x * kBoysInverseStep + 0.5);
      inside[l] = x;
      step[l] = static_cast<double>(row) / kBoysInverseStep - x;
      entry[l] = table + static_cast<size_t>(row) * kBoysColumns;
    }
    Pack decay = step * 0.0 + 1.0, value, column;
    for (int l = 0; l < kLanes; ++l) value[l] = entry[l][order + kBoysTerms];
    for (int k = kBoysTerms - 1; k > 0; --k) {
      for (int l = 0; l < kLanes; ++l) column[l] = entry[l][order + k];
      const Pack scaled = step * kReciprocal[k];
      value = column + value * scaled;
      decay = 1.0 + decay * scaled;
    }
    for (int l = 0; l < kLanes; ++l) column[l] = entry[l][0];
    decay = decay * column;
    values[order] = value;
    inside = inside * 2.0;
    for (int m = order - 1; m >= 0; --m) {
      value = (inside * value + decay) * (1.0 / (2 * m + 1));
      values[m] = value;
    }
  }
  if (large) {
    for (int l = 0; l < kLanes; ++l) {
      if (!(t[l] < kBoysRange)) boys_upward(order, t[l], reinterpret_cast<double*>(values) + l, kLanes);
    }
  }
}

// r_tuv = (d/dP_x)^t (d/dP_y)^u (d/dP_z)^v scale[0] F_0(p |P - C|^2) for t + u + v <= degree, eight points C at once;
// scale[m] = scale[0] (-2p)^m.
JAXQC_INLINE void hermite_coulomb(const double* table, const HermiteStep* steps, int degree, double p,
                                  const double* center, const double* scale, const double* coordinates, Pack* f,
                                  Pack* r) {
  Pack x[3];
  for (int d = 0; d < 3; ++d) {
    load(coordinates + d * kLanes, x[d]);
    x[d] = center[d] - x[d];
  }
  const Pack t = (x[0] * x[0] + x[1] * x[1] + x[2] * x[2]) * p;
  boys_pack(table, degree, t, f);
  r[0] = f[degree] * scale[degree];
  for (int m = degree - 1; m >= 0; --m) {
    // In place: an entry needs entries of lower degree only, so go downwards.
    for (int i = hermite_size(degree - m) - 1; i > 0; --i) {
      const HermiteStep& step = steps[i];
      Pack value = x[step.axis] * r[step.first];
      if (step.factor != 0) value += step.factor * r[step.second];
      r[i] = value;
    }
    r[0] = f[m] * scale[m];
  }
}

struct CoulombJob {
  const double* table;
  const HermiteStep* steps;
  const Points* points;
  const int* shifted;  // [component][tuv]: the place of tuv + n
  int degree, order;   // degree of the pair's Hermite expansion; derivative order of the operator
  Pack *f, *r, *sums;
};

// h_tuv = sum_Cn w[C,n] (-1)^order R_{tuv+n}
JAXQC_CLONES void sum_over_points(const CoulombJob& job, double p, const double* center, const double* scale,
                                  double* h) {
  const int size = hermite_size(job.degree), components = job.points->components;
  for (int i = 0; i < size; ++i) job.sums[i] = job.sums[i] * 0.0;
  for (int pack = 0; pack < job.points->packs; ++pack) {
    hermite_coulomb(job.table, job.steps, job.degree + job.order, p, center, scale,
                    job.points->coordinates.data() + static_cast<size_t>(pack) * 3 * kLanes, job.f, job.r);
    const double* weights = job.points->weights.data() + static_cast<size_t>(pack) * components * kLanes;
    for (int n = 0; n < components; ++n) {
      Pack w;
      load(weights + n * kLanes, w);
      const int* place = job.shifted + static_cast<size_t>(n) * size;
      for (int i = 0; i < size; ++i) job.sums[i] += w * job.r[place[i]];
    }
  }
  for (int i = 0; i < size; ++i) {
    double sum = 0;
    for (int l = 0; l < kLanes; ++l) sum += job.sums[i][l];
    h[i] = sum;
  }
}

// w[C,n] += sum_tuv gamma_tuv (-1)^order R_{tuv+n}
JAXQC_CLONES void spread_to_points(const CoulombJob& job, double p, const double* center, const double* scale,
                                   const double* gamma, double* weights) {
  const int size = hermite_size(job.degree), components = job.points->components;
  for (int pack = 0; pack < job.points->packs; ++pack) {
    hermite_coulomb(job.table, job.steps, job.degree + job.order, p, center, scale,
                    job.points->coordinates.data() + static_cast<size_t>(pack) * 3 * kLanes, job.f, job.r);
    for (int n = 0; n < components; ++n) {
      const int* place = job.shifted + static_cast<size_t>(n) * size;
      double* target = weights + (static_cast<size_t>(pack) * components + n) * kLanes;
      Pack sum;
      load(target, sum);
      for (int i = 0; i < size; ++i) sum += gamma[i] * job.r[place[i]];
      __builtin_memcpy(target, &sum, sizeof(Pack));
    }
  }
}

struct Workspace {
  std::vector<double> e, h, block, scratch;
  PackArray f, r, sums;

  Workspace(int la, int lb, int order)
      : f(la + lb + order + 1), r(hermite_size(la + lb + order)), sums(hermite_size(la + lb)) {
    const int degree = la + lb;
    e.resize(3 * (la + 1) * (lb + 1) * (degree + 1));
    h.resize(hermite_size(degree));
    block.resize(static_cast<size_t>(cartesian_size(la)) * cartesian_size(lb));
    scratch.resize((degree + 1) * (degree + 1));
  }

  void prepare(int la, int lb, const PrimitivePair& pair) {
    const int axis = (la + 1) * (lb + 1) * (la + lb + 1);
    for (int d = 0; d < 3; ++d) hermite_coefficients(la, lb, pair.p, pair.pa[d], pair.pb[d], e.data() + d * axis);
  }
};

// For each degree of the pair: [component n][tuv] -> place of tuv + n.
std::vector<std::vector<int>> shifted_indices(int max_degree, int order) {
  std::vector<std::vector<int>> all(max_degree + 1);
  for (int degree = 0; degree <= max_degree; ++degree) {
    for (int nx = order; nx >= 0; --nx) {
      for (int ny = order - nx; ny >= 0; --ny) {
        for (int k = 0; k <= degree; ++k) {
          for (int t = k; t >= 0; --t) {
            for (int u = k - t; u >= 0; --u) {
              all[degree].push_back(hermite_index(t + nx, u + ny, k - t - u + order - nx - ny));
            }
          }
        }
      }
    }
  }
  return all;
}

void coulomb_scale(const PrimitivePair& pair, int degree, int order, double* scale) {
  constexpr double two_pi = 6.28318530717958647693;
  scale[0] = two_pi / pair.p * pair.prefactor * (order % 2 ? -1 : 1);  // d/dC = -d/dP
  for (int m = 1; m <= degree; ++m) scale[m] = scale[m - 1] * -2 * pair.p;
}

ffi::Error check_degree(const Shells& sa, const Shells& sb, int64_t order) {
  if (order < 0 || sa.max_l + sb.max_l + order > kBoysMaxOrder) {
    return ffi::Error::InvalidArgument("The sum of both angular momenta and of the derivative order must not exceed " +
                                       std::to_string(kBoysMaxOrder) + ".");
  }
  return ffi::Error::Success();
}

ffi::Error nuclear(ffi::ThreadPool pool, DoubleBuffer ca, DoubleBuffer xa, DoubleBuffer da, DoubleBuffer cb,
                   DoubleBuffer xb, DoubleBuffer db, DoubleBuffer positions, DoubleBuffer weights,
                   ffi::Result<DoubleBuffer> result, IntSpan la_, IntSpan na_, IntSpan lb_, IntSpan nb_, int64_t order,
                   bool symmetric) {
  Shells sa, sb;
  if (auto error = make_shells(la_, na_, ca, xa, da, sa); error.failure()) return error;
  if (auto error = make_shells(lb_, nb_, cb, xb, db, sb); error.failure()) return error;
  if (auto error = check_degree(sa, sb, order); error.failure()) return error;
  if (!fit(ca, xa, da) || !fit(cb, xb, db) || !finite(positions) || !finite(weights)) {
    fill_nan(result);
    return ffi::Error::Success();
  }
  const int n = static_cast<int>(order);
  const Points points = make_points(positions.typed_data(), weights.typed_data(),
                                    static_cast<int>(positions.element_count() / 3), cartesian_size(n));
  const auto shifted = shifted_indices(sa.max_l + sb.max_l, n);
  const double* table = boys_table();
  const HermiteStep* steps = hermite_steps().data();
  double* out = result->typed_data();
  for_each_row(pool, sa.count, [&](int row) {
    Workspace w(sa.max_l, sb.max_l, n);
    const int ia = sa.count - 1 - row, la = sa.ls[ia];
    for (int ib = 0; ib < (symmetric ? ia + 1 : sb.count); ++ib) {
      const int lb = sb.ls[ib];
      const CoulombJob job{table,   steps, &points,    shifted[la + lb].data(), la + lb, n, w.f.data(),
                           w.r.data(), w.sums.data()};
      std::fill(w.block.begin(), w.block.end(), 0.0);
      for_each_primitive_pair(sa, ia, sb, ib, [&](const PrimitivePair& pair) {
        double scale[kBoysMaxOrder + 1];
        coulomb_scale(pair, la + lb + n, n, scale);
        sum_over_points(job, pair.p, pair.center, scale, w.h.data());
        w.prepare(la, lb, pair);
        hermite_to_cartesian(la, lb, w.e.data(), w.h.data(), w.scratch.data(), w.block.data());
      });
      store_block(sa, ia, sb, ib, symmetric, w.block.data(), out);
    }
  });
  return ffi::Error::Success();
}

ffi::Error nuclear_weights(ffi::ThreadPool pool, DoubleBuffer ca, DoubleBuffer xa, DoubleBuffer da, DoubleBuffer cb,
                           DoubleBuffer xb, DoubleBuffer db, DoubleBuffer positions, DoubleBuffer matrix,
                           ffi::Result<DoubleBuffer> result, IntSpan la_, IntSpan na_, IntSpan lb_, IntSpan nb_,
                           int64_t order, bool symmetric) {
  Shells sa, sb;
  if (auto error = make_shells(la_, na_, ca, xa, da, sa); error.failure()) return error;
  if (auto error = make_shells(lb_, nb_, cb, xb, db, sb); error.failure()) return error;
  if (auto error = check_degree(sa, sb, order); error.failure()) return error;
  if (matrix.element_count() != static_cast<size_t>(sa.nao) * sb.nao) {
    return ffi::Error::InvalidArgument(
        "matrix must have one row per function of the first list and one column per function of the second.");
  }
  if (!fit(ca, xa, da) || !fit(cb, xb, db) || !finite(positions) || !finite(matrix)) {
    fill_nan(result);
    return ffi::Error::Success();
  }
  const int n = static_cast<int>(order), components = cartesian_size(n);
  const Points points =
      make_points(positions.typed_data(), nullptr, static_cast<int>(positions.element_count() / 3), components);
  const auto shifted = shifted_indices(sa.max_l + sb.max_l, n);
  const double* table = boys_table();
  const HermiteStep* steps = hermite_steps().data();
  const double* g = matrix.typed_data();
  // A fixed number of partial sums, added in a fixed order: the result does not depend on the number of threads.
  const int parts = std::min(sa.count, 64);
  std::vector<std::vector<double>> partial(parts);
  for_each_row(pool, parts, [&](int part) {
    Workspace w(sa.max_l, sb.max_l, n);
    partial[part].assign(points.weights.size(), 0.0);
    for (int ia = part; ia < sa.count; ia += parts) {
      const int la = sa.ls[ia], na = cartesian_size(la);
      for (int ib = 0; ib < (symmetric ? ia + 1 : sb.count); ++ib) {
        const int lb = sb.ls[ib], nb = cartesian_size(lb);
        const CoulombJob job{table,   steps, &points,    shifted[la + lb].data(), la + lb, n, w.f.data(),
                             w.r.data(), w.sums.data()};
        double largest = 0;
        for (int i = 0; i < na; ++i) {
          for (int j = 0; j < nb; ++j) {
            const size_t r = sa.ao_offset[ia] + i, c = sb.ao_offset[ib] + j, width = sb.nao;
            double value = g[r * width + c];
            if (symmetric && ia != ib) value += g[c * width + r];
            w.block[i * nb + j] = value;
            largest = std::max(largest, std::abs(value));
          }
        }
        if (largest == 0) continue;
        for_each_primitive_pair(sa, ia, sb, ib, [&](const PrimitivePair& pair) {
          double scale[kBoysMaxOrder + 1];
          coulomb_scale(pair, la + lb + n, n, scale);
          w.prepare(la, lb, pair);
          std::fill(w.h.begin(), w.h.begin() + hermite_size(la + lb), 0.0);
          cartesian_to_hermite(la, lb, w.e.data(), w.block.data(), w.scratch.data(), w.h.data());
          spread_to_points(job, pair.p, pair.center, scale, w.h.data(), partial[part].data());
        });
      }
    }
  });
  double* out = result->typed_data();
  std::fill(out, out + result->element_count(), 0.0);
  for (size_t i = 0; i < points.source.size(); ++i) {
    if (points.source[i] < 0) continue;
    for (int k = 0; k < components; ++k) {
      double sum = 0;
      for (int part = 0; part < parts; ++part) {
        sum += partial[part][(i / kLanes * components + k) * kLanes + i % kLanes];
      }
      out[static_cast<size_t>(points.source[i]) * components + k] = sum;
    }
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxqc::one_electron

#pragma GCC visibility push(default)
extern "C" {
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_nuclear, jaxqc::one_electron::nuclear,
                              JAXQC_TWO_LISTS.Arg<jaxqc::one_electron::DoubleBuffer>()
                                  .Arg<jaxqc::one_electron::DoubleBuffer>()
                                  .JAXQC_LIST_ATTRIBUTES.Attr<int64_t>("order")
                                  .Attr<bool>("symmetric"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_nuclear_weights, jaxqc::one_electron::nuclear_weights,
                              JAXQC_TWO_LISTS.Arg<jaxqc::one_electron::DoubleBuffer>()
                                  .Arg<jaxqc::one_electron::DoubleBuffer>()
                                  .JAXQC_LIST_ATTRIBUTES.Attr<int64_t>("order")
                                  .Attr<bool>("symmetric"));
}
#pragma GCC visibility pop

// Cartesian one-electron integrals over two lists of contracted shells, as XLA FFI handlers.
//
//   jaxqc_multipole        (a| x^i y^j z^k |b), i + j + k = order, about an origin (order 0: the overlap)
//   jaxqc_kinetic          (a| -1/2 nabla^2 |b)
//   jaxqc_nuclear          sum_Cn w[C,n] (a| d^n/dC^n 1/|r - C| |b)
//   jaxqc_nuclear_weights  its transpose in w: sum_ab G_ab (a| d^n/dC^n 1/|r - C| |b)
//   jaxqc_boys             F_m(T)
//
// The two lists need not be the same; `symmetric` says that they are, and halves the work.
#include "one_electron.h"

#include <algorithm>
#include <string>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
// One clone per instruction set, chosen when the library is loaded: the library runs on any x86-64.
#define JAXQC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define JAXQC_CLONES
#endif
#define JAXQC_INLINE inline __attribute__((always_inline))

namespace ffi = xla::ffi;

namespace jaxqc {

ffi::Error make_shells(IntSpan ls, IntSpan nprims, const DoubleBuffer& centers, const DoubleBuffer& exponents,
                       const DoubleBuffer& coefficients, Shells& shells) {
  shells.count = static_cast<int>(ls.size());
  if (nprims.size() != ls.size() || centers.element_count() != 3 * ls.size()) {
    return ffi::Error::InvalidArgument("ls, nprims and centers of a shell list must have one entry per shell.");
  }
  shells.ls = ls.begin();
  shells.nprims = nprims.begin();
  shells.centers = centers.typed_data();
  shells.exponents = exponents.typed_data();
  shells.coefficients = coefficients.typed_data();
  shells.primitive_offset.assign(1, 0);
  shells.ao_offset.assign(1, 0);
  for (int i = 0; i < shells.count; ++i) {
    shells.primitive_offset.push_back(shells.primitive_offset.back() + nprims[i]);
    shells.ao_offset.push_back(shells.ao_offset.back() + cartesian_size(ls[i]));
    shells.max_l = std::max<int>(shells.max_l, ls[i]);
    shells.max_nprim = std::max<int>(shells.max_nprim, nprims[i]);
  }
  shells.nao = shells.ao_offset.back();
  const size_t total = static_cast<size_t>(shells.primitive_offset.back());
  if (exponents.element_count() != total || coefficients.element_count() != total) {
    return ffi::Error::InvalidArgument("exponents and coefficients of a shell list must have sum(nprims) entries.");
  }
  return ffi::Error::Success();
}

static std::vector<HermiteStep> make_hermite_steps() {
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

void hermite_coefficients(int la, int lb, double p, double pa, double pb, double* e) {
  const int nt = la + lb + 1;
  const double half = 0.5 / p;
  auto row = [&](int i, int j) { return e + (i * (lb + 1) + j) * nt; };
  // E^{i+1,j}_t = E^{ij}_{t-1} / 2p + X_PA E^{ij}_t + (t + 1) E^{ij}_{t+1}, and the same for j with X_PB.
  auto raise = [&](const double* from, int degree, double shift, double* to) {
    for (int t = 0; t <= degree + 1; ++t) {
      double value = t <= degree ? shift * from[t] : 0.0;
      if (t > 0) value += half * from[t - 1];
      if (t < degree) value += (t + 1) * from[t + 1];
      to[t] = value;
    }
  };
  row(0, 0)[0] = 1;
  for (int i = 0; i <= la; ++i) {
    if (i > 0) raise(row(i - 1, 0), i - 1, pa, row(i, 0));
    for (int j = 1; j <= lb; ++j) raise(row(i, j - 1), i + j - 1, pb, row(i, j));
  }
}

void hermite_to_cartesian(int la, int lb, const double* e, const double* h, double* scratch, double* block) {
  const int nt = la + lb + 1, axis = (la + 1) * (lb + 1) * nt, nb = cartesian_size(lb);
  for (int az = 0; az <= la; ++az) {
    for (int bz = 0; bz <= lb; ++bz) {
      const double* ez = e + 2 * axis + (az * (lb + 1) + bz) * nt;
      const int rest = la + lb - az - bz;
      for (int t = 0; t <= rest; ++t) {
        for (int u = 0; u <= rest - t; ++u) {
          double sum = 0;
          for (int v = 0; v <= az + bz; ++v) sum += ez[v] * h[hermite_index(t, u, v)];
          scratch[t * nt + u] = sum;
        }
      }
      for (int ay = 0; ay <= la - az; ++ay) {
        const int ax = la - az - ay;
        for (int by = 0; by <= lb - bz; ++by) {
          const int bx = lb - bz - by;
          const double* ey = e + axis + (ay * (lb + 1) + by) * nt;
          const double* ex = e + (ax * (lb + 1) + bx) * nt;
          double value = 0;
          for (int t = 0; t <= ax + bx; ++t) {
            double sum = 0;
            for (int u = 0; u <= ay + by; ++u) sum += ey[u] * scratch[t * nt + u];
            value += ex[t] * sum;
          }
          block[cartesian_index(ax, ay, az) * nb + cartesian_index(bx, by, bz)] += value;
        }
      }
    }
  }
}

void cartesian_to_hermite(int la, int lb, const double* e, const double* block, double* scratch, double* h) {
  const int nt = la + lb + 1, axis = (la + 1) * (lb + 1) * nt, nb = cartesian_size(lb);
  for (int az = 0; az <= la; ++az) {
    for (int bz = 0; bz <= lb; ++bz) {
      const double* ez = e + 2 * axis + (az * (lb + 1) + bz) * nt;
      const int rest = la + lb - az - bz;
      std::fill(scratch, scratch + nt * nt, 0.0);
      for (int ay = 0; ay <= la - az; ++ay) {
        const int ax = la - az - ay;
        for (int by = 0; by <= lb - bz; ++by) {
          const int bx = lb - bz - by;
          const double* ey = e + axis + (ay * (lb + 1) + by) * nt;
          const double* ex = e + (ax * (lb + 1) + bx) * nt;
          const double value = block[cartesian_index(ax, ay, az) * nb + cartesian_index(bx, by, bz)];
          for (int t = 0; t <= ax + bx; ++t) {
            for (int u = 0; u <= ay + by; ++u) scratch[t * nt + u] += value * ex[t] * ey[u];
          }
        }
      }
      for (int t = 0; t <= rest; ++t) {
        for (int u = 0; u <= rest - t; ++u) {
          for (int v = 0; v <= az + bz; ++v) h[hermite_index(t, u, v)] += ez[v] * scratch[t * nt + u];
        }
      }
    }
  }
}

namespace {

// ---------------------------------------------------------------- eight points at a time

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
JAXQC_CLONES void sum_over_points(const CoulombJob& job, double p, const double* center, const double* scale, double* h) {
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

// ---------------------------------------------------------------- shared by the handlers

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

void store_block(const Shells& sa, int ia, const Shells& sb, int ib, bool symmetric, const double* block, double* out) {
  const int na = cartesian_size(sa.ls[ia]), nb = cartesian_size(sb.ls[ib]);
  const size_t width = sb.nao;
  for (int i = 0; i < na; ++i) {
    for (int j = 0; j < nb; ++j) {
      const size_t row = sa.ao_offset[ia] + i, column = sb.ao_offset[ib] + j;
      out[row * width + column] = block[i * nb + j];
      if (symmetric) out[column * width + row] = block[i * nb + j];
    }
  }
}

// One-dimensional tables s[k][i][j] = int (x - A)^i (x - B)^j (x - O)^k exp(-p (x - P)^2) dx, i <= la, j <= lb + order - k.
struct LineIntegrals {
  int nj, ni, order;
  std::vector<double> values;

  LineIntegrals(int la, int lb, int order_) : nj(lb + order_ + 1), ni(la + 1), order(order_) {
    values.resize(static_cast<size_t>(order + 1) * ni * nj);
  }
  double& at(int k, int i, int j) { return values[(static_cast<size_t>(k) * ni + i) * nj + j]; }

  void fill(double p, double pa, double pb, double bo) {
    const double half = 0.5 / p;
    at(0, 0, 0) = std::sqrt(3.14159265358979323846 / p);
    for (int i = 0; i < ni; ++i) {
      for (int j = 0; j < nj; ++j) {
        if (i == 0 && j == 0) continue;
        double value;
        if (i > 0) {
          value = pa * at(0, i - 1, j);
          if (i > 1) value += half * (i - 1) * at(0, i - 2, j);
          if (j > 0) value += half * j * at(0, i - 1, j - 1);
        } else {
          value = pb * at(0, 0, j - 1);
          if (j > 1) value += half * (j - 1) * at(0, 0, j - 2);
        }
        at(0, i, j) = value;
      }
    }
    for (int k = 1; k <= order; ++k) {
      for (int i = 0; i < ni; ++i) {
        for (int j = 0; j < nj - k; ++j) at(k, i, j) = at(k - 1, i, j + 1) + bo * at(k - 1, i, j);
      }
    }
  }
};

template <typename Visitor>
void for_each_component(int l, Visitor&& visit) {
  for (int x = l; x >= 0; --x) {
    for (int y = l - x; y >= 0; --y) visit(cartesian_index(x, y, l - x - y), x, y, l - x - y);
  }
}

// ---------------------------------------------------------------- handlers

ffi::Error multipole(ffi::ThreadPool pool, DoubleBuffer ca, DoubleBuffer xa, DoubleBuffer da, DoubleBuffer cb,
                     DoubleBuffer xb, DoubleBuffer db, DoubleBuffer origin, ffi::Result<DoubleBuffer> result,
                     IntSpan la_, IntSpan na_, IntSpan lb_, IntSpan nb_, int64_t order, bool symmetric) {
  Shells sa, sb;
  if (auto error = make_shells(la_, na_, ca, xa, da, sa); error.failure()) return error;
  if (auto error = make_shells(lb_, nb_, cb, xb, db, sb); error.failure()) return error;
  const int components = cartesian_size(static_cast<int>(order));
  const size_t size = static_cast<size_t>(sa.nao) * sb.nao;
  double* out = result->typed_data();
  const double* centre = origin.typed_data();
  parallel_for(pool, sa.count, [&](int row) {
    const int ia = sa.count - 1 - row, la = sa.ls[ia], na = cartesian_size(la);
    for (int ib = 0; ib < (symmetric ? ia + 1 : sb.count); ++ib) {
      const int lb = sb.ls[ib], nb = cartesian_size(lb);
      std::vector<LineIntegrals> s(3, LineIntegrals(la, lb, static_cast<int>(order)));
      std::vector<double> block(static_cast<size_t>(components) * na * nb);
      for_each_primitive_pair(sa, ia, sb, ib, [&](const PrimitivePair& pair) {
        for (int d = 0; d < 3; ++d) s[d].fill(pair.p, pair.pa[d], pair.pb[d], sb.centers[3 * ib + d] - centre[d]);
        for_each_component(static_cast<int>(order), [&](int k, int kx, int ky, int kz) {
          for_each_component(la, [&](int i, int ix, int iy, int iz) {
            for_each_component(lb, [&](int j, int jx, int jy, int jz) {
              block[(k * na + i) * nb + j] +=
                  pair.prefactor * s[0].at(kx, ix, jx) * s[1].at(ky, iy, jy) * s[2].at(kz, iz, jz);
            });
          });
        });
      });
      for (int k = 0; k < components; ++k) {
        store_block(sa, ia, sb, ib, symmetric, block.data() + static_cast<size_t>(k) * na * nb, out + k * size);
      }
    }
  });
  return ffi::Error::Success();
}

ffi::Error kinetic(ffi::ThreadPool pool, DoubleBuffer ca, DoubleBuffer xa, DoubleBuffer da, DoubleBuffer cb,
                   DoubleBuffer xb, DoubleBuffer db, ffi::Result<DoubleBuffer> result, IntSpan la_, IntSpan na_,
                   IntSpan lb_, IntSpan nb_, bool symmetric) {
  Shells sa, sb;
  if (auto error = make_shells(la_, na_, ca, xa, da, sa); error.failure()) return error;
  if (auto error = make_shells(lb_, nb_, cb, xb, db, sb); error.failure()) return error;
  double* out = result->typed_data();
  parallel_for(pool, sa.count, [&](int row) {
    const int ia = sa.count - 1 - row, la = sa.ls[ia], na = cartesian_size(la);
    for (int ib = 0; ib < (symmetric ? ia + 1 : sb.count); ++ib) {
      const int lb = sb.ls[ib], nb = cartesian_size(lb);
      std::vector<LineIntegrals> s(3, LineIntegrals(la + 1, lb + 1, 0)), t(3, LineIntegrals(la, lb, 0));
      std::vector<double> block(static_cast<size_t>(na) * nb);
      for_each_primitive_pair(sa, ia, sb, ib, [&](const PrimitivePair& pair) {
        for (int d = 0; d < 3; ++d) {
          s[d].fill(pair.p, pair.pa[d], pair.pb[d], 0.0);
          // 1/2 <di/dx|dj/dx>: unlike the second derivative of one side, this form never cancels large numbers
          // when the two exponents are far apart.
          for (int i = 0; i <= la; ++i) {
            for (int j = 0; j <= lb; ++j) {
              double value = 4 * pair.a * pair.b * s[d].at(0, i + 1, j + 1);
              if (i > 0) value -= 2 * pair.b * i * s[d].at(0, i - 1, j + 1);
              if (j > 0) value -= 2 * pair.a * j * s[d].at(0, i + 1, j - 1);
              if (i > 0 && j > 0) value += i * j * s[d].at(0, i - 1, j - 1);
              t[d].at(0, i, j) = 0.5 * value;
            }
          }
        }
        for_each_component(la, [&](int i, int ix, int iy, int iz) {
          for_each_component(lb, [&](int j, int jx, int jy, int jz) {
            const double sx = s[0].at(0, ix, jx), sy = s[1].at(0, iy, jy), sz = s[2].at(0, iz, jz);
            block[i * nb + j] += pair.prefactor * (t[0].at(0, ix, jx) * sy * sz + sx * t[1].at(0, iy, jy) * sz +
                                                   sx * sy * t[2].at(0, iz, jz));
          });
        });
      });
      store_block(sa, ia, sb, ib, symmetric, block.data(), out);
    }
  });
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
  const int n = static_cast<int>(order);
  const Points points = make_points(positions.typed_data(), weights.typed_data(),
                                    static_cast<int>(positions.element_count() / 3), cartesian_size(n));
  const auto shifted = shifted_indices(sa.max_l + sb.max_l, n);
  const double* table = boys_table();
  const HermiteStep* steps = hermite_steps().data();
  double* out = result->typed_data();
  parallel_for(pool, sa.count, [&](int row) {
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
    return ffi::Error::InvalidArgument("matrix must have one row per function of the first list, one column per function of the second.");
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
  parallel_for(pool, parts, [&](int part) {
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

ffi::Error boys_values(DoubleBuffer argument, ffi::Result<DoubleBuffer> result, int64_t order) {
  if (order < 0 || order > kBoysMaxOrder) {
    return ffi::Error::InvalidArgument("order must lie between 0 and " + std::to_string(kBoysMaxOrder) + ".");
  }
  const double* table = boys_table();
  double values[kBoysMaxOrder + 1];
  for (size_t i = 0; i < argument.element_count(); ++i) {
    boys(table, static_cast<int>(order), argument.typed_data()[i], values);
    result->typed_data()[i] = values[order];
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxqc

#define JAXQC_SHELL_LIST Arg<jaxqc::DoubleBuffer>().Arg<jaxqc::DoubleBuffer>().Arg<jaxqc::DoubleBuffer>()
#define JAXQC_TWO_LISTS ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().JAXQC_SHELL_LIST.JAXQC_SHELL_LIST
#define JAXQC_LIST_ATTRIBUTES                                                                               \
  Ret<jaxqc::DoubleBuffer>().Attr<jaxqc::IntSpan>("a_ls").Attr<jaxqc::IntSpan>("a_nprims").Attr<jaxqc::IntSpan>("b_ls").Attr<jaxqc::IntSpan>("b_nprims")

extern "C" {
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_multipole, jaxqc::multipole,
                              JAXQC_TWO_LISTS.Arg<jaxqc::DoubleBuffer>()
                                  .JAXQC_LIST_ATTRIBUTES.Attr<int64_t>("order")
                                  .Attr<bool>("symmetric"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_kinetic, jaxqc::kinetic, JAXQC_TWO_LISTS.JAXQC_LIST_ATTRIBUTES.Attr<bool>("symmetric"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_nuclear, jaxqc::nuclear,
                              JAXQC_TWO_LISTS.Arg<jaxqc::DoubleBuffer>()
                                  .Arg<jaxqc::DoubleBuffer>()
                                  .JAXQC_LIST_ATTRIBUTES.Attr<int64_t>("order")
                                  .Attr<bool>("symmetric"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_nuclear_weights, jaxqc::nuclear_weights,
                              JAXQC_TWO_LISTS.Arg<jaxqc::DoubleBuffer>()
                                  .Arg<jaxqc::DoubleBuffer>()
                                  .JAXQC_LIST_ATTRIBUTES.Attr<int64_t>("order")
                                  .Attr<bool>("symmetric"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_boys, jaxqc::boys_values,
                              ffi::Ffi::Bind().Arg<jaxqc::DoubleBuffer>().Ret<jaxqc::DoubleBuffer>().Attr<int64_t>("order"));
}

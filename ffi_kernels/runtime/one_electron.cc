// Cartesian one-electron integrals over two lists of contracted shells, as XLA FFI handlers.
//
//   jaxqc_multipole  (a| x^i y^j z^k |b), i + j + k = order, about an origin (order 0: the overlap)
//   jaxqc_kinetic    (a| -1/2 nabla^2 |b)
//   jaxqc_boys       F_m(T)
//
// (nuclear attraction: nuclear_attraction.cc)
//
// The two lists need not be the same; `symmetric` says that they are, and halves the work.
#include "one_electron.h"

#include <algorithm>
#include <string>

namespace ffi = xla::ffi;

namespace jaxqc::one_electron {

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

namespace {

// One-dimensional tables s[k][i][j] = int (x - A)^i (x - B)^j (x - O)^k exp(-p (x - P)^2) dx,
// i <= la, j <= lb + order - k.
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

ffi::Error multipole(ffi::ThreadPool pool, DoubleBuffer ca, DoubleBuffer xa, DoubleBuffer da, DoubleBuffer cb,
                     DoubleBuffer xb, DoubleBuffer db, DoubleBuffer origin, ffi::Result<DoubleBuffer> result,
                     IntSpan la_, IntSpan na_, IntSpan lb_, IntSpan nb_, int64_t order, bool symmetric) {
  Shells sa, sb;
  if (auto error = make_shells(la_, na_, ca, xa, da, sa); error.failure()) return error;
  if (auto error = make_shells(lb_, nb_, cb, xb, db, sb); error.failure()) return error;
  if (!fit(ca, xa, da) || !fit(cb, xb, db) || !finite(origin)) {
    fill_nan(result);
    return ffi::Error::Success();
  }
  const int components = cartesian_size(static_cast<int>(order));
  const size_t size = static_cast<size_t>(sa.nao) * sb.nao;
  double* out = result->typed_data();
  const double* centre = origin.typed_data();
  for_each_row(pool, sa.count, [&](int row) {
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
  if (!fit(ca, xa, da) || !fit(cb, xb, db)) {
    fill_nan(result);
    return ffi::Error::Success();
  }
  double* out = result->typed_data();
  for_each_row(pool, sa.count, [&](int row) {
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

ffi::Error boys_values(DoubleBuffer argument, ffi::Result<DoubleBuffer> result, int64_t order) {
  if (order < 0 || order > kBoysMaxOrder) {
    return ffi::Error::InvalidArgument("order must lie between 0 and " + std::to_string(kBoysMaxOrder) + ".");
  }
  const double* table = boys_table();
  double values[kBoysMaxOrder + 1];
  for (size_t i = 0; i < argument.element_count(); ++i) {
    if (!(argument.typed_data()[i] >= 0)) {  // outside its domain, or not a number
      result->typed_data()[i] = std::nan("");
      continue;
    }
    boys(table, static_cast<int>(order), argument.typed_data()[i], values);
    result->typed_data()[i] = values[order];
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxqc::one_electron

#pragma GCC visibility push(default)
extern "C" {
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_multipole, jaxqc::one_electron::multipole,
                              JAXQC_TWO_LISTS.Arg<jaxqc::one_electron::DoubleBuffer>()
                                  .JAXQC_LIST_ATTRIBUTES.Attr<int64_t>("order")
                                  .Attr<bool>("symmetric"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_kinetic, jaxqc::one_electron::kinetic,
                              JAXQC_TWO_LISTS.JAXQC_LIST_ATTRIBUTES.Attr<bool>("symmetric"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_boys, jaxqc::one_electron::boys_values,
                              ffi::Ffi::Bind()
                                  .Arg<jaxqc::one_electron::DoubleBuffer>()
                                  .Ret<jaxqc::one_electron::DoubleBuffer>()
                                  .Attr<int64_t>("order"));
}
#pragma GCC visibility pop

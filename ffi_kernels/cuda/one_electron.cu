// One-electron integrals over two lists of contracted Cartesian shells: one warp (a block) a pair of shells, any l and order.
//
// A launch handles one class: all pairs of shells with momenta la, lb, which lie next to each other in the sorted lists
// (shell, first primitive, primitives, first function) that `shells_a` and `shells_b` point to. Where both lists are the same
// (`symmetric`), la >= lb, each unordered pair comes once, and its transpose is written as well.
// `steps` describes the Cartesian components of all degrees, one degree after the other, x falling, then y falling:
// (powers x | y << 8 | z << 16, axis | factor << 2, first, second), of which the last three are for hermite_coulomb.
typedef long long int64;

#define LANES 32
#define PAIR_CUTOFF 1e-21
#define PI 3.14159265358979323846

#define LISTS                                                                                                          \
  const double *centers_a, const double *exponents_a, const double *coefficients_a, const int *shells_a,               \
      const double *centers_b, const double *exponents_b, const double *coefficients_b, const int *shells_b
#define CLASS int la, int lb, int first_a, int count_a, int first_b, int count_b, int symmetric, int nao_a, int nao_b

__device__ __forceinline__ int cartesian_size(int l) { return (l + 1) * (l + 2) / 2; }
__device__ __forceinline__ int hermite_size(int degree) { return (degree + 1) * (degree + 2) * (degree + 3) / 6; }
__device__ __forceinline__ int hermite_index(int x, int y, int z) {
  const int k = x + y + z;
  return k * (k + 1) * (k + 2) / 6 + (y + z) * (y + z + 1) / 2 + z;
}

struct __align__(16) Step {
  int powers, axis, first, second;
};

struct Powers {
  int x, y, z;
};
__device__ __forceinline__ Powers powers_at(const Step* steps, int i) {
  const int p = steps[i].powers;
  return {p & 255, p >> 8 & 255, p >> 16};
}

// One shell of a list.
struct Shell {
  double x, y, z;
  int primitive, nprim, ao;
};
__device__ __forceinline__ Shell load_shell(const double* centers, const int* shells, int i) {
  const int* s = shells + 4 * i;
  const double* at = centers + 3 * s[0];
  return {at[0], at[1], at[2], s[1], s[2], s[3]};
}

// The shells of pair number `index` of the class, as places in the class.
__device__ __forceinline__ void find_pair(int64 index, int count_b, bool triangular, int& i, int& j) {
  if (!triangular) {
    i = static_cast<int>(index / count_b);
    j = static_cast<int>(index % count_b);
    return;
  }
  i = static_cast<int>((sqrt(8.0 * index + 1.0) - 1.0) * 0.5);
  while (static_cast<int64>(i) * (i + 1) / 2 > index) i--;
  while (static_cast<int64>(i + 1) * (i + 2) / 2 <= index) i++;
  j = static_cast<int>(index - static_cast<int64>(i) * (i + 1) / 2);
}
__device__ __forceinline__ int64 pair_count(int count_a, int count_b, bool triangular) {
  return triangular ? static_cast<int64>(count_a) * (count_a + 1) / 2 : static_cast<int64>(count_a) * count_b;
}

// A product of two primitives as one Gaussian at P.
struct Product {
  double a, b, p, prefactor, pa[3], pb[3], center[3];
};
// False where the product is too small to matter; a product that is not a number is not.
__device__ __forceinline__ bool make_product(const Shell& s, double a, double ca, const Shell& t, double b, double cb,
                                             Product& out) {
  const double ab[3] = {s.x - t.x, s.y - t.y, s.z - t.z}, at[3] = {s.x, s.y, s.z};
  const double p = a + b, r2 = ab[0] * ab[0] + ab[1] * ab[1] + ab[2] * ab[2];
  out.a = a;
  out.b = b;
  out.p = p;
  out.prefactor = ca * cb * exp(-a * b / p * r2);
#pragma unroll
  for (int d = 0; d < 3; d++) {
    out.pa[d] = -b / p * ab[d];
    out.pb[d] = a / p * ab[d];
    out.center[d] = at[d] + out.pa[d];
  }
  return !(fabs(out.prefactor) < PAIR_CUTOFF);
}

__device__ __forceinline__ double component(const double (&v)[3], int d) { return d == 0 ? v[0] : d == 1 ? v[1] : v[2]; }

// The loops of all kernels, over the pairs of the class and, within, over the products of their primitives.
#define FOR_EACH_PAIR                                                                                                  \
  const int lane = threadIdx.x;                                                                                        \
  const bool triangular = symmetric && la == lb;                                                                       \
  const int na = cartesian_size(la), nb = cartesian_size(lb), block = na * nb;                                         \
  const int64 npair = pair_count(count_a, count_b, triangular);                                                        \
  for (int64 pair = blockIdx.x; pair < npair; pair += gridDim.x)
#define LOAD_PAIR                                                                                                      \
  int i, j;                                                                                                            \
  find_pair(pair, count_b, triangular, i, j);                                                                          \
  const bool diagonal = triangular && i == j;                                                                          \
  const Shell s = load_shell(centers_a, shells_a, first_a + i), t = load_shell(centers_b, shells_b, first_b + j);
#define FOR_EACH_PRODUCT(product)                                                                                      \
  Product product;                                                                                                     \
  for (int ip = s.primitive; ip < s.primitive + s.nprim; ip++)                                                         \
    for (int jp = t.primitive; jp < t.primitive + t.nprim; jp++)                                                       \
      if (make_product(s, exponents_a[ip], coefficients_a[ip], t, exponents_b[jp], coefficients_b[jp], product))

// Copies the block of a pair to its transpose, on the diagonal from the lower triangle.
__device__ __forceinline__ void mirror(double* out, const Shell& s, const Shell& t, int block, int nb, int nao, int lane,
                                       bool diagonal) {
  for (int e = lane; e < block; e += LANES) {
    const int a = e / nb, b = e % nb;
    if (diagonal && b > a) continue;
    out[static_cast<int64>(t.ao + b) * nao + s.ao + a] = out[static_cast<int64>(s.ao + a) * nao + t.ao + b];
  }
}

// s[k][i][j] = int (x - A)^i (x - B)^j (x - O)^k exp(-p (x - P)^2) dx for i < ni, k <= order, j < nj - k.
__device__ __forceinline__ void line_integrals(double* s, int ni, int nj, int order, double p, double pa, double pb, double bo) {
  const double half = 0.5 / p;
  for (int i = 0; i < ni; i++) {
    for (int j = 0; j < nj; j++) {
      double value = sqrt(PI / p);
      if (i > 0) {
        value = pa * s[(i - 1) * nj + j];
        if (i > 1) value += half * (i - 1) * s[(i - 2) * nj + j];
        if (j > 0) value += half * j * s[(i - 1) * nj + j - 1];
      } else if (j > 0) {
        value = pb * s[j - 1];
        if (j > 1) value += half * (j - 1) * s[j - 2];
      }
      s[i * nj + j] = value;
    }
  }
  for (int k = 1; k <= order; k++) {
    double* to = s + k * ni * nj;
    const double* from = to - ni * nj;
    for (int i = 0; i < ni; i++) {
      for (int j = 0; j < nj - k; j++) to[i * nj + j] = from[i * nj + j + 1] + bo * from[i * nj + j];
    }
  }
}

extern "C" __global__ __launch_bounds__(LANES) void multipole(LISTS, const Step* steps, const double* origin, CLASS, int order,
                                                              double* out) {
  extern __shared__ double tables[];
  const int ni = la + 1, nj = lb + order + 1, axis = (order + 1) * ni * nj, ncomp = cartesian_size(order);
  const Step* of_a = steps + hermite_size(la - 1);
  const Step* of_b = steps + hermite_size(lb - 1);
  const Step* of_operator = steps + hermite_size(order - 1);
  const int64 size = static_cast<int64>(nao_a) * nao_b;
  FOR_EACH_PAIR {
    LOAD_PAIR
    FOR_EACH_PRODUCT(product) {
      if (lane < 3) {
        const double at = lane == 0 ? t.x : lane == 1 ? t.y : t.z;
        line_integrals(tables + lane * axis, ni, nj, order, product.p, component(product.pa, lane),
                       component(product.pb, lane), at - origin[lane]);
      }
      __syncwarp();
      for (int e = lane; e < ncomp * block; e += LANES) {
        const int n = e / block, a = e % block / nb, b = e % nb;
        if (diagonal && b > a) continue;
        const Powers k = powers_at(of_operator, n), u = powers_at(of_a, a), v = powers_at(of_b, b);
        out[n * size + static_cast<int64>(s.ao + a) * nao_b + t.ao + b] +=
            product.prefactor * tables[(k.x * ni + u.x) * nj + v.x] * tables[axis + (k.y * ni + u.y) * nj + v.y] *
            tables[2 * axis + (k.z * ni + u.z) * nj + v.z];
      }
      __syncwarp();
    }
    for (int n = 0; symmetric && n < ncomp; n++) mirror(out + n * size, s, t, block, nb, nao_b, lane, diagonal);
  }
}

extern "C" __global__ __launch_bounds__(LANES) void kinetic(LISTS, const Step* steps, CLASS, double* out) {
  extern __shared__ double tables[];
  const int ni = la + 2, nj = lb + 2, axis = ni * nj, small = (la + 1) * (lb + 1);
  double* kinetic_tables = tables + 3 * axis;
  const Step* of_a = steps + hermite_size(la - 1);
  const Step* of_b = steps + hermite_size(lb - 1);
  FOR_EACH_PAIR {
    LOAD_PAIR
    FOR_EACH_PRODUCT(product) {
      if (lane < 3) {
        double* line = tables + lane * axis;
        line_integrals(line, ni, nj, 0, product.p, component(product.pa, lane),
                       component(product.pb, lane), 0.0);
        // 1/2 <di/dx|dj/dx>: unlike the second derivative of one side, this form never cancels large numbers when the two
        // exponents are far apart.
        for (int x = 0; x <= la; x++) {
          for (int y = 0; y <= lb; y++) {
            double value = 4 * product.a * product.b * line[(x + 1) * nj + y + 1];
            if (x > 0) value -= 2 * product.b * x * line[(x - 1) * nj + y + 1];
            if (y > 0) value -= 2 * product.a * y * line[(x + 1) * nj + y - 1];
            if (x > 0 && y > 0) value += x * y * line[(x - 1) * nj + y - 1];
            kinetic_tables[lane * small + x * (lb + 1) + y] = 0.5 * value;
          }
        }
      }
      __syncwarp();
      for (int e = lane; e < block; e += LANES) {
        const int a = e / nb, b = e % nb;
        if (diagonal && b > a) continue;
        const Powers u = powers_at(of_a, a), v = powers_at(of_b, b);
        const double sx = tables[u.x * nj + v.x], sy = tables[axis + u.y * nj + v.y], sz = tables[2 * axis + u.z * nj + v.z];
        const double kx = kinetic_tables[u.x * (lb + 1) + v.x], ky = kinetic_tables[small + u.y * (lb + 1) + v.y];
        const double kz = kinetic_tables[2 * small + u.z * (lb + 1) + v.z];
        out[static_cast<int64>(s.ao + a) * nao_b + t.ao + b] += product.prefactor * (kx * sy * sz + sx * ky * sz + sx * sy * kz);
      }
      __syncwarp();
    }
    if (symmetric) mirror(out, s, t, block, nb, nao_b, lane, diagonal);
  }
}

// E^{ij}_t of one axis for i <= la, j <= lb, t <= i + j, without the exponential: e[(i (lb + 1) + j) (la + lb + 1) + t], from
// E^{i+1,j}_t = E^{ij}_{t-1} / 2p + X_PA E^{ij}_t + (t + 1) E^{ij}_{t+1}, and the same for j with X_PB.
__device__ __forceinline__ void hermite_coefficients(double* e, int la, int lb, double p, double pa, double pb) {
  const int nt = la + lb + 1;
  const double half = 0.5 / p;
  for (int i = 0; i <= la; i++) {
    for (int j = 0; j <= lb; j++) {
      double* to = e + (i * (lb + 1) + j) * nt;
      if (i + j == 0) {
        to[0] = 1.0;
        continue;
      }
      const double* from = j > 0 ? to - nt : to - (lb + 1) * nt;
      const double shift = j > 0 ? pb : pa;
      const int degree = i + j - 1;
      for (int k = 0; k <= degree + 1; k++) {
        double value = k <= degree ? shift * from[k] : 0.0;
        if (k > 0) value += half * from[k - 1];
        if (k < degree) value += (k + 1) * from[k + 1];
        to[k] = value;
      }
    }
  }
}

// The table of the Boys function: rows T = i / 8, in each exp(-T), F_0, F_1, ...
#define BOYS_RANGE 64.0
#define BOYS_TERMS 10

// F_degree(T), and exp(-T): a Taylor series about the nearest row, or for large T the upward recursion, in which exp(-T) is so
// small beside the rest that nothing cancels.
__device__ __forceinline__ double boys_top(const double* table, int columns, int degree, double t, double& decay) {
  if (!(t < BOYS_RANGE)) {
    const double half = 0.5 / t;
    decay = t < 700.0 ? exp(-t) : 0.0;
    double value = 0.88622692545275801365 / sqrt(t);
    for (int m = 0; m < degree; m++) value = ((2 * m + 1) * value - decay) * half;
    return value;
  }
  const int row = static_cast<int>(t * 8.0 + 0.5);
  const double* entry = table + static_cast<int64>(row) * columns;
  const double step = row * 0.125 - t;
  double value = entry[degree + BOYS_TERMS];
  decay = 1.0;
#pragma unroll
  for (int k = BOYS_TERMS - 1; k > 0; k--) {
    decay = 1.0 + decay * step * (1.0 / k);
    value = entry[degree + k] + value * step * (1.0 / k);
  }
  decay *= entry[0];
  return value;
}

// r_tuv = (d/dP_x)^t (d/dP_y)^u (d/dP_z)^v scale F_0(p |P - C|^2) for t + u + v <= degree; entry i of this lane is r[32 i].
__device__ __forceinline__ void hermite_coulomb(const double* table, int columns, const Step* steps, int degree, double p, double x, double y,
                                double z, double scale, double* r) {
  double decay;
  const double t = p * (x * x + y * y + z * z);
  double boys = boys_top(table, columns, degree, t, decay), factor = scale;
  for (int m = 0; m < degree; m++) factor *= -2.0 * p;
  const double inverse = -0.5 / p;
  r[0] = boys * factor;
  for (int m = degree - 1; m >= 0; m--) {
    // In place: an entry needs entries of lower degree only, so go downwards.
    for (int i = hermite_size(degree - m) - 1; i > 0; i--) {
      const Step step = steps[i];
      const int axis = step.axis & 3, n = step.axis >> 2;
      const double shift = axis == 0 ? x : axis == 1 ? y : z;
      double value = shift * r[step.first * LANES];
      if (n) value += n * r[step.second * LANES];
      r[i * LANES] = value;
    }
    boys = (2.0 * t * boys + decay) / (2 * m + 1);
    factor *= inverse;
    r[0] = boys * (m ? factor : scale);
  }
}

// What both kernels of nuclear attraction keep in shared memory: E of three axes, numbers of each Hermite function, a row of
// numbers (weights of 32 points, or a block of the matrix), and the tables of hermite_coulomb where `scratch` is null.
struct Workspace {
  double *e, *h, *row, *r;
  int axis;
};
__device__ __forceinline__ Workspace make_workspace(double* shared, int la, int lb, int order, int nrow, double* scratch) {
  Workspace w;
  w.axis = (la + 1) * (lb + 1) * (la + lb + 1);
  w.e = shared;
  w.h = w.e + 3 * w.axis;
  w.row = w.h + hermite_size(la + lb);
  w.r = (scratch ? scratch + static_cast<int64>(blockIdx.x) * hermite_size(la + lb + order) * LANES : w.row + nrow) + threadIdx.x;
  return w;
}
__device__ __forceinline__ double coulomb_scale(const Product& product, int order) {
  return 2.0 * PI / product.p * product.prefactor * (order % 2 ? -1.0 : 1.0);  // d/dC = -d/dP
}

// sum_Cn w[C][n] (a| d^n/dC^n 1/|r - C| |b): points are summed in the Hermite basis, a point a lane.
// With registers for 20 blocks some compilers spill where the GPU is older.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define NUCLEAR_BLOCKS 16
#else
#define NUCLEAR_BLOCKS 20
#endif
extern "C" __global__ __launch_bounds__(LANES, NUCLEAR_BLOCKS) void nuclear(LISTS, const Step* steps, const double* boys, int columns,
                                                            const double* points, const double* weights, int npoint, CLASS, int order,
                                                            double* scratch, double* out) {
  extern __shared__ double shared[];
  const int ncomp = cartesian_size(order), degree = la + lb, nhermite = hermite_size(degree), nt = degree + 1;
  const Step* of_a = steps + hermite_size(la - 1);
  const Step* of_b = steps + hermite_size(lb - 1);
  const Step* of_operator = steps + hermite_size(order - 1);
  const Workspace w = make_workspace(shared, la, lb, order, ncomp * LANES, scratch);
  const double* r = w.r - threadIdx.x;
  FOR_EACH_PAIR {
    LOAD_PAIR
    FOR_EACH_PRODUCT(product) {
      if (lane < 3) hermite_coefficients(w.e + lane * w.axis, la, lb, product.p, component(product.pa, lane),
                                         component(product.pb, lane));
      for (int k = lane; k < nhermite; k += LANES) w.h[k] = 0.0;
      const double scale = coulomb_scale(product, order);
      for (int base = 0; base < npoint; base += LANES) {
        const int live = min(LANES, npoint - base), c = base + min(lane, live - 1);
        for (int n = 0; n < ncomp; n++) w.row[n * LANES + lane] = weights[static_cast<int64>(c) * ncomp + n];
        hermite_coulomb(boys, columns, steps, degree + order, product.p, product.center[0] - points[3 * c],
                        product.center[1] - points[3 * c + 1], product.center[2] - points[3 * c + 2], scale, w.r);
        __syncwarp();
        for (int k = lane; k < nhermite; k += LANES) {
          const Powers u = powers_at(steps, k);
          double sum = 0.0;
          for (int n = 0; n < ncomp; n++) {
            const Powers v = powers_at(of_operator, n);
            const double* entry = r + hermite_index(u.x + v.x, u.y + v.y, u.z + v.z) * LANES;
            int at = lane % live;  // lanes begin at different points, so that they read different banks
            for (int q = 0; q < live; q++) {
              sum += w.row[n * LANES + at] * entry[at];
              at = at + 1 < live ? at + 1 : 0;
            }
          }
          w.h[k] += sum;
        }
        __syncwarp();
      }
      for (int e = lane; e < block; e += LANES) {
        const int a = e / nb, b = e % nb;
        if (diagonal && b > a) continue;
        const Powers u = powers_at(of_a, a), v = powers_at(of_b, b);
        const double* ex = w.e + (u.x * (lb + 1) + v.x) * nt;
        const double* ey = w.e + w.axis + (u.y * (lb + 1) + v.y) * nt;
        const double* ez = w.e + 2 * w.axis + (u.z * (lb + 1) + v.z) * nt;
        double value = 0.0;
        for (int x = 0; x <= u.x + v.x; x++) {
          for (int y = 0; y <= u.y + v.y; y++) {
            double sum = 0.0;
            for (int z = 0; z <= u.z + v.z; z++) sum += ez[z] * w.h[hermite_index(x, y, z)];
            value += ex[x] * ey[y] * sum;
          }
        }
        out[static_cast<int64>(s.ao + a) * nao_b + t.ao + b] += value;
      }
      __syncwarp();
    }
    if (symmetric) mirror(out, s, t, block, nb, nao_b, lane, diagonal);
  }
}

// Its transpose: sum_ab G_ab (a| d^n/dC^n 1/|r - C| |b), added to parts[block of threads][n][C], which are summed later, in order.
extern "C" __global__ __launch_bounds__(LANES, 16) void nuclear_weights(LISTS, const Step* steps, const double* boys, int columns,
                                                                    const double* points, const double* matrix, int npoint, CLASS,
                                                                    int order, double* scratch, double* parts) {
  extern __shared__ double shared[];
  const int ncomp = cartesian_size(order), degree = la + lb, nhermite = hermite_size(degree), nt = degree + 1;
  const Step* of_a = steps + hermite_size(la - 1);
  const Step* of_b = steps + hermite_size(lb - 1);
  const Step* of_operator = steps + hermite_size(order - 1);
  const Workspace w = make_workspace(shared, la, lb, order, cartesian_size(la) * cartesian_size(lb), scratch);
  double* part = parts + static_cast<int64>(blockIdx.x) * ncomp * npoint;
  FOR_EACH_PAIR {
    LOAD_PAIR
    for (int e = lane; e < block; e += LANES) {
      const int64 row = s.ao + e / nb, column = t.ao + e % nb;
      double value = matrix[row * nao_b + column];
      if (symmetric && !diagonal) value += matrix[column * nao_b + row];
      w.row[e] = value;
    }
    FOR_EACH_PRODUCT(product) {
      if (lane < 3) hermite_coefficients(w.e + lane * w.axis, la, lb, product.p, component(product.pa, lane),
                                         component(product.pb, lane));
      __syncwarp();
      for (int k = lane; k < nhermite; k += LANES) {
        const Powers q = powers_at(steps, k);
        double sum = 0.0;
        for (int a = 0; a < na; a++) {
          const Powers u = powers_at(of_a, a);
          for (int b = 0; b < nb; b++) {
            const Powers v = powers_at(of_b, b);
            if (u.x + v.x < q.x || u.y + v.y < q.y || u.z + v.z < q.z) continue;
            sum += w.row[a * nb + b] * w.e[(u.x * (lb + 1) + v.x) * nt + q.x] * w.e[w.axis + (u.y * (lb + 1) + v.y) * nt + q.y] *
                   w.e[2 * w.axis + (u.z * (lb + 1) + v.z) * nt + q.z];
          }
        }
        w.h[k] = sum;
      }
      __syncwarp();
      const double scale = coulomb_scale(product, order);
      for (int c = lane; c < npoint; c += LANES) {
        hermite_coulomb(boys, columns, steps, degree + order, product.p, product.center[0] - points[3 * c],
                        product.center[1] - points[3 * c + 1], product.center[2] - points[3 * c + 2], scale, w.r);
        for (int n = 0; n < ncomp; n++) {
          const Powers v = powers_at(of_operator, n);
          double sum = 0.0;
          for (int k = 0; k < nhermite; k++) {
            const Powers u = powers_at(steps, k);
            sum += w.h[k] * w.r[hermite_index(u.x + v.x, u.y + v.y, u.z + v.z) * LANES];
          }
          part[static_cast<int64>(n) * npoint + c] += sum;
        }
      }
      __syncwarp();
    }
  }
}

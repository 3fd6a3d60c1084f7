// Gaussians whose sum is nowhere below the charge distributions of the pairs of shells of a class: screening of erfc(omega r) / r, see eri_short.cuh.
//
// A product of primitives w |r - A|^la |r - B|^lb exp(-p |r - Q|^2) with u = |r - Q| is split by p > s: the first factors are at most
// (u + |Q - A|)^la (u + |Q - B|)^lb, and those times exp(-(p - s) u^2) have a largest value. What remains is a Gaussian of the exponent s at Q. Where that
// costs little it is replaced by one at the place P of the pair, exp(-s |r - Q|^2) <= exp(s g / (s - g) d^2) exp(-g |r - P|^2), d = |Q - P|.
typedef long long int64;
#define TILE 32
#define SHARE 0.7
#define CHEAP 0.5   // of all charge of the pair
#define SLACK 1e-3  // for single precision, in which these numbers are stored

// Largest value of l (log(u + a) - slope u^2) over u >= 0.
__device__ __forceinline__ double highest(int l, double a, double slope) {
  if (l == 0) return 0.0;
  const double u = 0.5 * (sqrt(a * a + 2.0 / slope) - a);
  return l * (log(u + a) - slope * u * u);
}

struct Point {
  double x, y, z;
  __device__ __forceinline__ double to(double u, double v, double w) const { return sqrt((x - u) * (x - u) + (y - v) * (y - v) + (z - w) * (z - w)); }
};

// `angular`: log of the largest value of the angular parts of both functions on the unit sphere.
extern "C" __global__ void eri_reach(const int4* info, const double* centers, const double* prims, int64 capacity, int la, int lb, double angular,
                                     int first, int count, float4* places, float2* charges) {
  const int at = first + blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= first + count) return;
  const int4 pair = info[at];
  const double *a = centers + 6 * int64{at}, *p = prims + pair.z, *weight = p + 4 * capacity;
  const double share = la + lb == 0 ? 1.0 : SHARE;
  const auto place = [&](int n) { return Point{p[capacity + n], p[2 * capacity + n], p[3 * capacity + n]}; };
  const auto charge = [&](int n, const Point& q) {
    const double slope = (1.0 - share) * p[n] / (la + lb), s = share * p[n];
    const double most = highest(la, q.to(a[0], a[1], a[2]), slope) + highest(lb, q.to(a[0] - a[3], a[1] - a[4], a[2] - a[5]), slope);
    return fabs(weight[n]) * p[n] * exp(most + 1.5 * log(3.14159265358979323846 / s));
  };
  double total = 0.0, g = 1e300;
  Point mean = {0.0, 0.0, 0.0};
  for (int n = 0; n < pair.w * TILE; n += TILE) {
    const Point q = place(n);
    const double c = charge(n, q);
    total += c;
    mean.x += c * q.x, mean.y += c * q.y, mean.z += c * q.z;
    g = fmin(g, share * p[n]);
  }
  mean.x /= total, mean.y /= total, mean.z /= total;
  double sum = 0.0, reach = 0.0;
  for (int n = 0; n < pair.w * TILE; n += TILE) {
    const Point q = place(n);
    const double s = share * p[n], c = charge(n, q), d = q.to(mean.x, mean.y, mean.z), moved = c * exp(1.5 * log(s / g) + s * g / (s - g) * d * d);
    if (moved < CHEAP * total) {
      sum += moved;
    } else {
      sum += c;
      reach = fmax(reach, d);
    }
  }
  places[at] = {static_cast<float>(mean.x), static_cast<float>(mean.y), static_cast<float>(mean.z), static_cast<float>(1.0 / g)};
  charges[at] = {static_cast<float>(log(sum) + angular + SLACK), static_cast<float>(reach + SLACK)};
}

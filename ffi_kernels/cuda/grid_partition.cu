// Shares of space of atoms at grid points (Becke; Stratmann, Scuseria and Frisch), and their pullback to nuclei and points.
//
// A warp takes 32 points that are neighbours in space, a lane each, and all lanes look at the same pair of atoms: nothing is summed
// over lanes but what ends at nuclei. Bounds over the ball around the points leave the few atoms i that can have a share. Products
// over the nearest partners j leave fewer; how large they are says how far partners matter to each, because the tail of Becke's step
// falls with the eighth power of the distance. Candidates have a column of shared memory each; where there are more of them than columns,
// those whose products are complete make room. What belongs to pairs of atoms is staged there for 8 partners at a time. The code is
// kept short, as all of it runs in turn and has to stay in the instruction cache.
//
// Shares that are to be differentiated leave behind what their pullback needs of the products: of each warp, in a header, where its
// columns are (-1: nowhere, so that they have to be made again), their number, their atoms, and the shares of its points; and the
// columns, d f / d log P_i of atoms i, wherever there was place.
// Macros: SCHEME 0 Becke, 1 Stratmann; REVERSE 0 fractions, 1 pullback; BLOCKS of 128 threads a multiprocessor.
#define NEGLIGIBLE 1e-20  // share of the point's own atom that counts as none
#define UNSEEN 1e-14      // product, against the largest over the nearest partners, of a candidate that changes nothing
// Change of a share, in its own units and in those of the largest of the warp, that a partner may have and still be left out.
#define SMALL_FACTOR (REVERSE ? 1e-12f : 1e-14f)
#define SMALL_OWN 0.1f  // the least that a point's own atom counts, so that small shares keep their precision
// Derivatives that are left out: of a partner, and weights of candidates; against the largest |cotangent * share| of the warp, or
// against LEAST_OF_MEAN of the mean |cotangent| of all points, where this is more.
#define SMALL_SLOPE 1e-11f
#define SMALL_WEIGHT 1e-13f
#define LEAST_OF_MEAN 1.0
#define SMALL_COLUMN 1e-14  // complete products, and d f / d log P_i, that derivatives do without
#define HEADER 40
#include "grid_products.cuh"
#if REVERSE
#include "grid_pullback.cuh"
#endif

// pairs (natm, natm): 1 / |R_i - R_j| (0 for one place) and the shift a_ij; (0, -1), which makes the step 1, on the diagonal.
// mean: of |cotangent| over all points. headers, columns: what shares leave behind (headers null: nothing); `taken` of the places for
// columns are.
extern "C" __global__ __launch_bounds__(128, BLOCKS) void grid_partition(const double* coords, const double* points, const int* owner,
                                                                         const double2* pairs, const double* cotangent,
                                                                         const double* mean, double* headers, double* columns,
                                                                         unsigned long long* taken, double* fraction, double* centers,
                                                                         double* moved, int natm, long long n, long long places) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  Patch w = {coords, pairs};
  w.base = warp * ((Patch::size(natm) + 1) & ~1);
  w.natm = natm;
  w.lane = lane;
  double *r = w.column(0), *product = w.column(1);
  int* near = w.near();
  float *reach = w.reach(), *off = w.off();
  int* atoms = w.atoms();
  short* list = w.list();
#if REVERSE
  double* rate = w.column(2);
#endif
  const long long first = (static_cast<long long>(blockIdx.x) * warps + warp) * 32;
  if (first >= n) return;
  const bool used = first + lane < n;
  const long long point = used ? first + lane : n - 1;
  const double X = w.X = points[3 * point], Y = w.Y = points[3 * point + 1], Z = w.Z = points[3 * point + 2];
  const int own = owner[point];
#if REVERSE
  const double seed = used ? cotangent[point] : 0.0;
  if (!__any_sync(0xffffffffu, seed != 0.0)) {
#pragma unroll
    for (int k = 0; k < 3; k++) {
      if (used) moved[3 * point + k] = 0.0;
    }
    return;
  }
#endif
  // The ball; single precision, and the radius makes up for it.
  const double cx = sum_of_warp(X) * (1.0 / 32.0), cy = sum_of_warp(Y) * (1.0 / 32.0), cz = sum_of_warp(Z) * (1.0 / 32.0);
  const auto from_centre = [&](double x, double y, double z) {
    const float dx = static_cast<float>(x - cx), dy = static_cast<float>(y - cy), dz = static_cast<float>(z - cz);
    const float square = dx * dx + dy * dy + dz * dz;
    return square * rsqrtf(fmaxf(square, 1e-30f));
  };
  const float radius = -least_of_warp(-1.00001f * from_centre(X, Y, Z)) + 1e-3f;
  w.radius = radius;
  __syncwarp();
  float best = NONE;
  int which = 0;
#pragma unroll 1
  for (int j = lane; j < natm; j += 32) {
    const float d = from_centre(__ldg(coords + 3 * j), __ldg(coords + 3 * j + 1), __ldg(coords + 3 * j + 2)) + 1e-9f;
    off[j] = __uint_as_float(__float_as_uint(d) & ~1u);
    if (d < best) {
      best = d;
      which = j;
    }
  }
  __syncwarp();
  const float marked = __uint_as_float(__float_as_uint(off[own]) | 1u);
  __syncwarp();  // lanes may share an atom
  off[own] = marked;
  __syncwarp();
  // The products of candidates in columns: over the nearest partners at first, and then complete.
  double total = 0.0, owned = 0.0, reference = 0.0;  // reference: the largest over the nearest partners among the nearest atoms
  int candidates = 0, held = 0, nears = 0;
  bool ready = false;  // are the columns those of all candidates that matter?
  double* header = headers + (first >> 5) * HEADER;
  short* left = reinterpret_cast<short*>(header + 2);
#if REVERSE
  double factor = 0.0, base = 0.0, at_point[3] = {};
  const long long from = __double_as_longlong(header[0]);
  const bool stored = from >= 0;
  if (stored) {
    ready = true;
    held = static_cast<int>(__double_as_longlong(header[1]));
    factor = seed * header[8 + lane];
    if (lane < held) atoms[lane] = left[lane];
    __syncwarp();
#pragma unroll 4
    for (int k = 0; k < held; k++) {
      r[32 * k] = length_of(arm_of(w, atoms[k]));
      product[32 * k] = seed * columns[32 * (from + k) + lane];
    }
  }
#endif
  // Whether the product of atom i can matter at a point of the ball where the largest is `largest`.
  const auto can_matter = [&](int i, float largest) {
    const bool owns = __float_as_uint(off[i]) & 1;
    const float enough = fmaxf(static_cast<float>(owns ? 0.01 * NEGLIGIBLE : UNSEEN) * largest, 1e-37f);
    const float nearest = fmaxf(fabsf(off[i]) - radius, 0.0f);
    float bound = 1.0f;
#pragma unroll 1
    for (int first_m = 0; first_m < nears && !(bound < enough); first_m += 4) {
      double2 pair[4];  // of partners with i: shifts are reversed
#pragma unroll
      for (int u = 0; u < 4; u++) pair[u] = __ldg(pairs + static_cast<long long>(near[min(first_m + u, nears - 1)]) * natm + i);
#pragma unroll
      for (int u = 0; u < 4; u++) {
        const int m = first_m + u;
        if (m >= nears || near[m] == i) continue;
        bound *= bound_of(pair[u], fmaxf((nearest - reach[m]) * static_cast<float>(pair[u].x), -1.0f));
      }
    }
    return !(bound < enough);
  };
  // Appends atoms to the candidates.
  const auto append = [&](bool reaches, int i) {
    const unsigned votes = __ballot_sync(0xffffffffu, reaches);
    if (reaches) list[candidates + __popc(votes & ((1u << lane) - 1))] = static_cast<short>(i);
    candidates += __popc(votes);
  };
  // Leaves out columns from `begin` on where all products are less than `least`, of points' own atoms `least_of_own`; returns the end
  // of the others.
  const auto keep = [&](int begin, double least, double least_of_own) {
    int end = begin;
#pragma unroll 1
    for (int k = begin; k < held; k++) {
      const int i = atoms[k];
      const double limit = (i == own ? least_of_own : least) * reference;
      if (!__any_sync(0xffffffffu, !(product[32 * k] < limit))) continue;
      if (end < k) {
        __syncwarp();
        if (lane == 0) atoms[end] = i;
        r[32 * end] = r[32 * k];
        product[32 * end] = product[32 * k];
      }
      end++;
    }
    __syncwarp();
    return end;
  };
  if (!ready) {
    // The nearest atoms.
#pragma unroll 1
    for (; nears < NEAR; nears++) {
      const float least = least_of_warp(best);
      if (!(least < NONE)) break;
      const int winner = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, best == least))) - 1;
      if (lane == winner) {
        near[nears] = which;
        reach[nears] = best + radius;
        off[which] = -off[which];
        best = NONE;
#pragma unroll 1
        for (int j = lane; j < natm; j += 32) {
          if (off[j] > 0.0f && off[j] < best) {
            best = off[j];
            which = j;
          }
        }
      }
    }
    __syncwarp();
    w.nears = nears;
    const int mine = lane < nears ? near[lane] : 0;
    // The product of the nearest atom over the others is at least this.
    float largest = 1.0f;
    if (lane > 0 && lane < nears) {
      const double2 pair = __ldg(pairs + static_cast<long long>(mine) * natm + near[0]);
      largest = bound_of(pair, fminf((reach[0] - reach[lane] + 2.0f * radius) * static_cast<float>(pair.x), 1.0f));
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) largest *= __shfl_xor_sync(0xffffffffu, largest, o);
    append(lane < nears && can_matter(mine, largest), mine);
  }
  // d f = f (d log P_own - sum_i f_i d log P_i)
  const auto column = [&](int i, double value, double share) {
    const double part = value * reciprocal(total);
    return part == 0.0 ? 0.0 : share * ((i == own ? 1.0 : 0.0) - part);
  };
#pragma unroll 1
  for (int pass = ready; pass <= REVERSE; pass++) {
#if REVERSE
    if (pass == 1) base = reciprocal(fmax(-least_of_warp(-fabs(factor)), LEAST_OF_MEAN * __ldg(mean)));
#endif
    bool room = true;
    if (!ready) held = 0;
    int next = 0, complete = 0;
    do {
      if (!ready) {
#pragma unroll 1
        while (next < candidates && held < BATCH) {
          const int begin = held, count = min(BATCH - held, candidates - next);
          const bool start = pass == 0 && next == 0;
          __syncwarp();
          if (lane < count) atoms[begin + lane] = list[next + lane];
          __syncwarp();
          held += count;
          next += count;
          multiply(w, (1u << held) - (1u << begin), 0.0f, NEAREST);
          if (start) {
#pragma unroll 1
            for (int k = 0; k < held; k++) reference = product[32 * k] < reference ? reference : product[32 * k];
          }
          held = keep(begin, UNSEEN, 0.01 * NEGLIGIBLE);
          if (start) {
            const float largest = static_cast<float>(least_of_warp(reference));
#pragma unroll 1
            for (int i = lane; i - lane < natm; i += 32) append(i < natm && off[i] > 0.0f && can_matter(i, largest), i);
            __syncwarp();
          }
        }
        float cut = 0.0f;
        const double scale = reciprocal(reference);
#pragma unroll 1
        for (int k = complete; k < held; k++) {
          // A partner leaves out at most 8.6 u^8, u = (1 + mu) (1 + 2 a); with Stratmann's step nothing where u < 0.36.
          const float part = fmaxf(static_cast<float>(product[32 * k] * scale), atoms[k] == own ? SMALL_OWN : 0.0f);
          const float limit = least_of_warp(SCHEME ? 0.36f : power(SMALL_FACTOR / (8.6f * part + 1e-30f), 0.125f));
          if (lane == k) cut = limit;
        }
        if (complete < held) multiply(w, (1u << held) - (1u << complete), cut, DISTANT);
        if (pass == 0) {
#pragma unroll 1
          for (int k = complete; k < held; k++) {
            total += product[32 * k];
            if (atoms[k] == own) owned = product[32 * k];
          }
        }
        held = complete = keep(complete, SMALL_COLUMN, SMALL_COLUMN);
        if (next < candidates) {
          if (held < BATCH) continue;
          if (pass == 0) {
            room = false;
            held = complete = 0;
            continue;
          }
        }
      }
#if REVERSE
      if (pass == 0) continue;
      unsigned live = 0;
      float cut = 0.0f;
#pragma unroll 1
      for (int k = 0; k < held; k++) {
        const double weight = stored ? product[32 * k] : column(atoms[k], product[32 * k], factor);
        const float size = fabsf(static_cast<float>(weight * base));
        if (!__any_sync(0xffffffffu, !(size <= SMALL_WEIGHT))) continue;
        live |= 1u << k;
        // The derivative of that tail is at most 137 u^7 / R.
        const float limit = least_of_warp(SCHEME ? 0.36f : power(SMALL_SLOPE / (137.0f * size + 1e-37f), 1.0f / 7.0f));
        if (lane == k) cut = limit;
        product[32 * k] = weight;
        rate[32 * k] = 0.0;
      }
      __syncwarp();
      pull_back(w, live, cut, at_point, centers);
      held = complete = 0;
#endif
    } while (!ready && next < candidates);
    if (pass == 0) {
      ready = room;
      owned *= reciprocal(total);
      if (owned < NEGLIGIBLE) owned = 0.0;
#if REVERSE
      factor = seed * owned;
#endif
    }
  }
#if REVERSE
#pragma unroll
  for (int k = 0; k < 3; k++) {
    if (used) moved[3 * point + k] = at_point[k];
  }
#else
  if (used) fraction[point] = owned;
  if (!headers) return;
  long long to = -1;
  unsigned live = 0;
  if (ready) {
#pragma unroll 1
    for (int k = 0; k < held; k++) {
      product[32 * k] = column(atoms[k], product[32 * k], owned);
      if (__any_sync(0xffffffffu, !(fabs(product[32 * k]) <= SMALL_COLUMN))) live |= 1u << k;
    }
    if (lane == 0) to = static_cast<long long>(atomicAdd(taken, static_cast<unsigned long long>(__popc(live))));
    to = __shfl_sync(0xffffffffu, to, 0);
    if (to + __popc(live) > places) to = -1;
  }
  header[8 + lane] = owned;
  if (lane == 0) {
    header[0] = __longlong_as_double(to);
    header[1] = __longlong_as_double(__popc(live));
  }
  if (to < 0) return;
#pragma unroll 1
  for (int m = 0; live; m++) {
    const int k = __ffs(static_cast<int>(live)) - 1;
    live &= live - 1;
    if (lane == 0) left[m] = static_cast<short>(atoms[k]);
    columns[32 * (to + m) + lane] = product[32 * k];
  }
#endif
}

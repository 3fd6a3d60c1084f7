// Screening by distance for the operator erfc(omega r) / r, which is positive.
//
// Of each pair of shells |its charge distribution| <= sum_k q_k (s_k / pi)^(3/2) exp(-s_k |r - P_k|^2) everywhere, with |P_k - P| <= d and s_k >= p. Two
// such Gaussians at a distance R, normalised, have the integral (erf(w0 R) - erf(w R)) / R < erfc(w R) / R, 1 / w^2 = 1 / omega^2 + 1 / s + 1 / s', which
// falls with R, s and s': integrals of two pairs are below q q' erfc(w r) / r, where q = sum_k q_k, r = R - d - d' and w is that of p and p'.
#pragma once

// P and 1 / p, log q and d of all pairs, and of the bra.
struct Reach {
  const float4* places;
  const float2* charges;
  float4 place;
  float2 charge;
  float range;  // 1 / omega^2

  __device__ __forceinline__ Reach(const float4* places, const float2* charges, int bra, double omega)
      : places(places), charges(charges), place(places[bra]), charge(charges[bra]), range(static_cast<float>(1.0 / (omega * omega))) {}

  // Logarithm of a bound of all integrals with a ket.
  __device__ __forceinline__ float bound(int ket) const {
    const float4 other = places[ket];
    const float2 c = charges[ket];
    const float x = place.x - other.x, y = place.y - other.y, z = place.z - other.z;
    const float r = fmaxf(sqrtf(x * x + y * y + z * z) - charge.y - c.y, 0.0f), square = r * r, t = square / (range + place.w + other.w);
    // erfc(x) < exp(-x^2) min(1, 1 / (sqrt(pi) x)); at distance 0 the bound is infinite
    return charge.x + c.x - t - 0.5f * (logf(square) + fmaxf(0.0f, logf(3.14159265f * t)));
  }
};

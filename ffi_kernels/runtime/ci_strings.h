// Configurations of selected CI: occupation strings of alpha and beta electrons, their keys, and sets of them.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

namespace jaxqc::ci {

// V words of 64 orbitals for each spin, lowest orbitals first.
template <int V>
struct Strings {
  uint64_t word[2][V];
  bool has(int spin, int p) const { return word[spin][p >> 6] >> (p & 63) & 1; }
  void flip(int spin, int p) { word[spin][p >> 6] ^= uint64_t{1} << (p & 63); }
  bool operator==(const Strings& o) const { return std::memcmp(word, o.word, sizeof(word)) == 0; }
  // The order of keys: alpha before beta, highest orbitals first.
  bool operator<(const Strings& o) const {
    for (int s = 0; s < 2; ++s)
      for (int v = V - 1; v >= 0; --v)
        if (word[s][v] != o.word[s][v]) return word[s][v] < o.word[s][v];
    return false;
  }
  uint64_t hash() const {
    uint64_t h = 0;
    for (int s = 0; s < 2; ++s) {
      for (int v = 0; v < V; ++v) {
        h = (h ^ word[s][v]) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 32;
      }
    }
    h *= 0xD6E8FEB86659FD93ull;
    return h ^ h >> 29;
  }
};

// Words of a key; jaxqc/nnqs/_bits.py has the layout.
inline int key_words(int norb) { return norb <= 32 ? 1 : 2 * ((norb + 63) / 64); }

template <int V>
Strings<V> read_key(const uint64_t* key, int norb) {
  Strings<V> c;
  if (norb <= 32) {
    c.word[0][0] = key[0] >> norb;
    c.word[1][0] = key[0] & ((uint64_t{1} << norb) - 1);
  } else {
    for (int s = 0; s < 2; ++s)
      for (int v = 0; v < V; ++v) c.word[s][v] = key[s * V + V - 1 - v];
  }
  return c;
}

template <int V>
void write_key(const Strings<V>& c, int norb, uint64_t* key) {
  if (norb <= 32) {
    key[0] = c.word[0][0] << norb | c.word[1][0];
  } else {
    for (int s = 0; s < 2; ++s)
      for (int v = 0; v < V; ++v) key[s * V + V - 1 - v] = c.word[s][v];
  }
}

template <int V>
std::vector<Strings<V>> read_keys(const uint64_t* keys, int64_t count, int norb) {
  std::vector<Strings<V>> all(count);
  const int words = key_words(norb);
  for (int64_t i = 0; i < count; ++i) all[i] = read_key<V>(keys + i * words, norb);
  return all;
}

// Positions of configurations in a list, by open addressing.
template <int V>
class Lookup {
 public:
  explicit Lookup(const std::vector<Strings<V>>& members) : members_(members) {
    int64_t size = 16;
    while (size < 4 * static_cast<int64_t>(members.size())) size *= 2;
    mask_ = size - 1;
    slots_.assign(size, {-1, 0});
    for (int64_t i = 0; i < static_cast<int64_t>(members.size()); ++i) {
      const uint64_t hash = members[i].hash();
      uint64_t k = hash & mask_;
      while (slots_[k].index >= 0) k = (k + 1) & mask_;
      slots_[k] = {static_cast<int32_t>(i), static_cast<uint32_t>(hash >> 32)};
    }
  }
  // Position, or -1.
  int32_t find(const Strings<V>& c) const {
    const uint64_t hash = c.hash();
    const uint32_t tag = static_cast<uint32_t>(hash >> 32);
    for (uint64_t k = hash & mask_;; k = (k + 1) & mask_) {
      const Slot slot = slots_[k];
      if (slot.index < 0 || (slot.tag == tag && members_[slot.index] == c)) return slot.index;
    }
  }

 private:
  struct Slot {
    int32_t index;
    uint32_t tag;  // tells most strangers apart without a look at the member
  };
  const std::vector<Strings<V>>& members_;
  uint64_t mask_;
  std::vector<Slot> slots_;
};

}  // namespace jaxqc::ci

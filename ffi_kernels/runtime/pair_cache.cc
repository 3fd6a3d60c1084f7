#include "pair_cache.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <mutex>

namespace jaxqc {
namespace {

constexpr size_t kCached = 4;
typedef std::vector<char> Key;

template <class T>
void append(Key& key, const T* data, size_t n) {
  const char* p = reinterpret_cast<const char*>(data);
  key.insert(key.end(), p, p + n * sizeof(T));
}

std::mutex cache_lock;
std::list<std::pair<Key, std::shared_ptr<const PairSet>>> cache;  // most recent first

}  // namespace

std::shared_ptr<const PairSet> pair_set(const int32_t* ls, const int32_t* nprims, int64_t nshell, const double* centers, const double* exps,
                                        const double* coefs, int64_t nprim, bool cart, double threshold, const Runner& run) {
  Key key;
  const char* isa = kernels().name;
  append(key, &nshell, 1);
  append(key, &cart, 1);
  append(key, &threshold, 1);
  append(key, isa, std::strlen(isa));
  append(key, ls, nshell);
  append(key, nprims, nshell);
  append(key, centers, 3 * nshell);
  append(key, exps, nprim);
  append(key, coefs, nprim);
  {
    std::lock_guard<std::mutex> hold(cache_lock);
    for (auto it = cache.begin(); it != cache.end(); ++it)
      if (it->first == key) {
        cache.splice(cache.begin(), cache, it);
        return it->second;
      }
  }
  auto set = std::make_shared<PairSet>();
  set->basis = Basis(ls, nprims, nshell, centers, exps, coefs, nprim, cart);
  std::vector<bool> present(kMaxL + 1, false);
  for (const Shell& s : set->basis.shells) present[s.l] = true;
  std::vector<std::pair<int, int>> classes;  // the shell of higher l is the preferred base
  for (int la = 0; la <= set->basis.lmax; ++la)
    for (int lb = 0; lb <= set->basis.lmax; ++lb)
      if (present[la] && present[lb]) classes.push_back({la, lb});
  set->lists.resize(classes.size());
  run(static_cast<int>(classes.size()), [&](int k, int) {
    const auto [la, lb] = classes[k];
    set->lists[k] = build_pairs(set->basis, set->basis, true, la, lb, la >= lb ? Base::kPreferred : Base::kOther, threshold, kernels().schwarz);
  });
  set->lists.erase(std::remove_if(set->lists.begin(), set->lists.end(), [](const PairList& l) { return l.n == 0; }), set->lists.end());
  for (const PairList& l : set->lists)
    for (double q : l.q) set->q_max = std::max(set->q_max, q);
  std::lock_guard<std::mutex> hold(cache_lock);
  cache.emplace_front(std::move(key), set);
  while (cache.size() > kCached) cache.pop_back();
  return set;
}

}  // namespace jaxqc

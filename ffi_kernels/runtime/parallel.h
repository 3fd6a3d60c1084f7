// Work shared between the calling thread and helpers from XLA's own pool (or threads of our own where there is none).
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace jaxqc {

// Threads to use: JAXQC_NUM_THREADS, else the processors of the machine.
inline int num_threads() {
  if (const char* s = std::getenv("JAXQC_NUM_THREADS")) {
    const int n = std::atoi(s);  // checked when the library is loaded
    if (n > 0) return std::min(n, 1024);
  }
  const unsigned n = std::thread::hardware_concurrency();
  return n > 0 ? static_cast<int>(n) : 1;
}

// Runs job(0) .. job(count - 1), each once, in any order on any thread. `spawn` starts a helper (a callable that it may drop when it returns
// false); the caller works too, so that progress never depends on a helper being scheduled.
template <class Spawn>
void parallel_for(int count, const std::function<void(int job, int thread)>& job, Spawn&& spawn) {
  struct State {
    std::function<void(int, int)> job;
    int count;
    std::atomic<int> next{0}, threads{0};
    int done = 0;
    std::mutex lock;
    std::condition_variable ready;
    std::exception_ptr error;
    void work() {
      const int thread = threads.fetch_add(1);
      for (;;) {
        const int k = next.fetch_add(1);
        if (k >= count) return;
        std::exception_ptr problem;
        try {
          job(k, thread);
        } catch (...) {
          problem = std::current_exception();
        }
        std::lock_guard<std::mutex> hold(lock);
        if (problem) error = problem;
        if (++done == count) ready.notify_all();
      }
    }
  };
  // Helpers that start late find nothing to do; the shared state outlives them.
  auto state = std::make_shared<State>();
  state->job = job;
  state->count = count;
  const int helpers = std::min(num_threads(), count) - 1;
  for (int h = 0; h < helpers; ++h) spawn([state] { state->work(); });
  state->work();
  std::unique_lock<std::mutex> hold(state->lock);
  state->ready.wait(hold, [&] { return state->done == state->count; });
  if (state->error) std::rethrow_exception(state->error);
}

}  // namespace jaxqc

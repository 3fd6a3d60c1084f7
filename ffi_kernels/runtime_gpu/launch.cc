// One FFI handler for every CUDA kernel: it enqueues a list of launches, described by attributes, on XLA's stream.
//
// Kernels come from cubins that Python compiled and registered under a key (jaxqc_gpu_add). A launch says which kernel, its
// grid, block and shared memory, and where its arguments come from. Nothing is allocated, synchronised or read back, so that
// the calls can be recorded into command buffers.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <shared_mutex>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "driver.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jaxqc::gpu {
namespace {

constexpr int kDevices = 64;

// One kernel, and what its launches need on each device: filled when it is registered, read without locks afterwards.
struct Entry {
  std::string name;
  Kernel kernel = nullptr;
  int multiprocessors[kDevices] = {};
  Function function[kDevices] = {};
  Context context[kDevices] = {};
  std::atomic<int64_t> shared[kDevices] = {};  // bytes of shared memory of a block for which the carve-out was set, plus one
};

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries;                        // by "key/kernel"
  std::unordered_map<std::string, std::unique_ptr<std::vector<Entry*>>> lists;            // by the attribute of a call
  std::unordered_map<std::string, Library> libraries;                                     // by key
};

Registry& registry() {
  static Registry* instance = new Registry;  // never destroyed: the driver may be gone by then
  return *instance;
}

struct ContextGuard {
  explicit ContextGuard(Context context) { check(driver().CtxPush(context), "cuCtxPushCurrent"); }
  ~ContextGuard() {
    Context ignored;
    driver().CtxPop(&ignored);
  }
};

void add(const std::string& key, const void* cubin, const std::string& names, const int* devices, int ndevice) {
  const Driver& d = driver();
  Registry& r = registry();
  std::unique_lock lock(r.mutex);
  Library& library = r.libraries[key];
  if (!library) check(d.LibraryLoadData(&library, cubin, nullptr, nullptr, 0, nullptr, nullptr, 0), "loading the kernels " + key);
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, ';');) {
    auto& entry = r.entries[key + "/" + name];
    if (!entry) {
      entry = std::make_unique<Entry>();
      entry->name = name;
      check(d.LibraryGetKernel(&entry->kernel, library, name.c_str()), "finding the kernel " + name);
    }
    for (int i = 0; i < ndevice; ++i) {
      const int ordinal = devices[i];
      if (ordinal < 0 || ordinal >= kDevices) throw std::runtime_error("more than 64 devices are not supported");
      if (entry->function[ordinal]) continue;
      Device device;
      Context context;
      check(d.DeviceGet(&device, ordinal), "cuDeviceGet");
      check(d.PrimaryRetain(&context, device), "cuDevicePrimaryCtxRetain");  // kept: it is the context of JAX
      ContextGuard guard(context);
      int most = 0, fixed = 0;
      check(d.DeviceGetAttribute(&entry->multiprocessors[ordinal], kMultiprocessorCount, device), "cuDeviceGetAttribute");
      check(d.DeviceGetAttribute(&most, kMaxSharedOptin, device), "cuDeviceGetAttribute");
      check(d.KernelGetAttribute(&fixed, kStaticShared, entry->kernel, device), "cuKernelGetAttribute");
      check(d.KernelSetAttribute(kMaxDynamicShared, most - fixed, entry->kernel, device), "allowing " + name + " its shared memory");
      Function function;
      check(d.KernelGetFunction(&function, entry->kernel), "loading the kernel " + name);
      entry->context[ordinal] = context;
      entry->function[ordinal] = function;
    }
  }
}

const std::vector<Entry*>& lookup(std::string_view kernels) {
  Registry& r = registry();
  const std::string text(kernels);
  {
    std::shared_lock lock(r.mutex);
    auto found = r.lists.find(text);
    if (found != r.lists.end()) return *found->second;
  }
  std::unique_lock lock(r.mutex);
  auto list = std::make_unique<std::vector<Entry*>>();
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ';');) {
    auto found = r.entries.find(name);
    if (found == r.entries.end()) {
      throw std::runtime_error("the kernel " + name + " is not loaded in this process: a compiled program can be run only where "
                               "jaxqc has compiled its kernels; trace the function again");
    }
    list->push_back(found->second.get());
  }
  return *(r.lists[text] = std::move(list));
}

// Asks for as much shared memory of a multiprocessor as the blocks of a kernel that fit on it need, and no more: the rest is first-level
// cache. Kernels that run beside each other wait where their parts differ, and the driver's own choice takes more (3 % of a Fock build).
void carve(const Driver& d, Entry& entry, int32_t ordinal, int64_t block, int64_t shared) {
  if (entry.shared[ordinal].exchange(shared + 1) == shared + 1) return;
  Device device;
  int resident = 0, most = 0, fixed = 0, reserved = 0;
  check(d.DeviceGet(&device, ordinal), "cuDeviceGet");
  check(d.DeviceGetAttribute(&most, kMaxShared, device), "cuDeviceGetAttribute");
  check(d.DeviceGetAttribute(&reserved, kReservedShared, device), "cuDeviceGetAttribute");
  check(d.KernelGetAttribute(&fixed, kStaticShared, entry.kernel, device), "cuKernelGetAttribute");
  check(d.Occupancy(&resident, entry.function[ordinal], static_cast<int>(block), static_cast<size_t>(shared)),
        "finding the occupancy of the kernel " + entry.name);
  const int64_t percent = (100 * resident * (shared + fixed + reserved) + most - 1) / most;
  check(d.KernelSetAttribute(kCarveout, static_cast<int>(std::min<int64_t>(percent, 100)), entry.kernel, device),
        "dividing the memory of a multiprocessor for " + entry.name);
}

// Side streams on which launches run beside each other: their tails overlap. Each host thread has its own, so that a stream that is
// being recorded into a command buffer is never touched by another thread.
constexpr int kSideStreams = 3;

class Lanes {
 public:
  Lanes(int32_t ordinal, Stream main) : side_(sides()[ordinal]), main_(main) {}

  // The stream of the next launch: the main one after all that came before, or, if it may run beside its neighbours, one of several.
  Stream next(bool concurrent) {
    if (!concurrent) {
      join();
      return main_;
    }
    if (!forked_) fork();
    turn_ = (turn_ + 1) % (kSideStreams + 1);
    return turn_ == 0 ? main_ : side_.stream[turn_ - 1];
  }

  void join() {
    if (!forked_) return;
    forked_ = false;
    for (int i = 0; i < kSideStreams; ++i) {
      check(driver().EventRecord(side_.joined[i], side_.stream[i]), "cuEventRecord");
      check(driver().StreamWaitEvent(main_, side_.joined[i], 0), "cuStreamWaitEvent");
    }
  }

 private:
  struct Side {
    Stream stream[kSideStreams] = {};
    Event forked = nullptr, joined[kSideStreams] = {};
  };
  static std::unordered_map<int32_t, Side>& sides() {
    thread_local std::unordered_map<int32_t, Side> instance;  // never destroyed by us: the driver may be gone by then
    return instance;
  }

  void fork() {
    const Driver& d = driver();
    if (!side_.forked) {
      for (int i = 0; i < kSideStreams; ++i) {
        check(d.StreamCreate(&side_.stream[i], kNonBlocking), "cuStreamCreate");
        check(d.EventCreate(&side_.joined[i], kNoTiming), "cuEventCreate");
      }
      check(d.EventCreate(&side_.forked, kNoTiming), "cuEventCreate");
    }
    check(d.EventRecord(side_.forked, main_), "cuEventRecord");
    for (Stream stream : side_.stream) check(d.StreamWaitEvent(stream, side_.forked, 0), "cuStreamWaitEvent");
    forked_ = true;
  }

  Side& side_;
  Stream main_;
  bool forked_ = false;
  int turn_ = -1;
};

// The attribute `steps` lists, for each launch: grid x (0: as many blocks as the device holds at once), grid y, block x, bytes
// of shared memory, whether it may run beside its neighbours that may so, too, number of arguments, and a pair (kind, value) for each argument. The value of an operand or result is its
// index + 256 times an offset in bytes.
enum Kind : int64_t { kOperand = 0, kResult = 1, kInt64 = 2, kInt32 = 3, kDouble = 4 };
constexpr int kMaxArguments = 40;

ffi::Error launch(Stream stream, int32_t ordinal, ffi::RemainingArgs operands, ffi::RemainingRets results,
                  std::string_view kernels, ffi::Span<const int64_t> steps, ffi::Span<const int64_t> zeroed) {
  try {
    const Driver& d = driver();
    if (ordinal < 0 || ordinal >= kDevices) throw std::runtime_error("more than 64 devices are not supported");
    const std::vector<Entry*>& list = lookup(kernels);
    if (list.empty() || !list.front()->function[ordinal]) {
      throw std::runtime_error("the kernels " + std::string(kernels) + " are not loaded on device " + std::to_string(ordinal));
    }
    ContextGuard guard(list.front()->context[ordinal]);
    auto result_buffer = [&](int64_t index) {
      auto buffer = results.get<ffi::AnyBuffer>(index);
      if (buffer.has_error()) throw std::runtime_error("a result of a launch is missing: " + buffer.error().message());
      return *buffer.value();
    };
    for (int64_t index : zeroed) {
      if (index < 0) continue;  // what an empty list is written as
      ffi::AnyBuffer buffer = result_buffer(index);
      if (buffer.size_bytes() == 0) continue;
      check(d.MemsetD8Async(reinterpret_cast<unsigned long long>(buffer.untyped_data()), 0, buffer.size_bytes(), stream),
            "clearing a result of " + std::string(kernels));
    }
    Lanes lanes(ordinal, stream);
    const int64_t* at = steps.begin();
    for (Entry* entry : list) {
      if (steps.end() - at < 6 || at[5] > kMaxArguments || steps.end() - at < 6 + 2 * at[5]) {
        throw std::runtime_error("the description of the launches of " + std::string(kernels) + " is malformed");
      }
      const int64_t grid_y = at[1], block = at[2], shared = at[3], count = at[5];
      const bool concurrent = at[4] != 0;
      int64_t grid = at[0];
      at += 6;
      int64_t values[kMaxArguments];
      void* pointers[kMaxArguments];
      for (int64_t i = 0; i < count; ++i, at += 2) {
        values[i] = at[1];
        if (at[0] == kOperand) {
          auto buffer = operands.get<ffi::AnyBuffer>(at[1] & 255);
          if (buffer.has_error()) throw std::runtime_error("an operand of a launch is missing: " + buffer.error().message());
          values[i] = reinterpret_cast<int64_t>(buffer.value().untyped_data()) + (at[1] >> 8);
        } else if (at[0] == kResult) {
          values[i] = reinterpret_cast<int64_t>(result_buffer(at[1] & 255).untyped_data()) + (at[1] >> 8);
        }
        pointers[i] = &values[i];  // little-endian: an int32 lies at the start of its int64
      }
      Function function = entry->function[ordinal];
      if (!function) throw std::runtime_error("the kernel " + entry->name + " is not loaded on device " + std::to_string(ordinal));
      if (concurrent) carve(d, *entry, ordinal, block, shared);
      if (grid <= 0) {
        int resident = 0;
        check(d.Occupancy(&resident, function, static_cast<int>(block), static_cast<size_t>(shared)),
              "finding the occupancy of the kernel " + entry->name);
        if (resident < 1) {
          throw std::runtime_error("the kernel " + entry->name + " does not fit on this GPU with " + std::to_string(block) +
                                   " threads and " + std::to_string(shared) + " bytes of shared memory a block");
        }
        grid = int64_t{resident} * entry->multiprocessors[ordinal];
      }
      if (Result status = d.LaunchKernel(function, static_cast<unsigned>(grid), static_cast<unsigned>(grid_y), 1,
                                         static_cast<unsigned>(block), 1, 1, static_cast<unsigned>(shared), lanes.next(concurrent), pointers,
                                         nullptr)) {
        throw std::runtime_error("launching the kernel " + entry->name + " (grid " + std::to_string(grid) + " x " +
                                 std::to_string(grid_y) + ", block " + std::to_string(block) + ", shared memory " +
                                 std::to_string(shared) + " bytes) failed: " + describe(status));
      }
    }
    lanes.join();
    return ffi::Error::Success();
  } catch (const std::exception& e) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("jaxqc: ") + e.what());
  }
}

}  // namespace
}  // namespace jaxqc::gpu

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxqc_gpu_launch, jaxqc::gpu::launch,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<void*>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("kernels")
                                  .Attr<ffi::Span<const int64_t>>("steps")
                                  .Attr<ffi::Span<const int64_t>>("zeroed"),
                              {ffi::Traits::kCmdBufferCompatible});
#pragma GCC visibility pop

// Loads a cubin under a key, and its kernels `names` (separated by ';') on the devices given. Returns 0, or 1 with a message.
extern "C" __attribute__((visibility("default"))) int jaxqc_gpu_add(const char* key, const void* cubin, const char* names,
                                                                    const int* devices, int ndevice, char* message, int size) {
  try {
    jaxqc::gpu::add(key, cubin, names, devices, ndevice);
    return 0;
  } catch (const std::exception& e) {
    std::strncpy(message, e.what(), static_cast<size_t>(size) - 1);
    message[size - 1] = 0;
    return 1;
  }
}

// Compute capability of a device, major * 10 + minor; -1 with a message where it cannot be found.
extern "C" __attribute__((visibility("default"))) int jaxqc_gpu_arch(int ordinal, char* message, int size) {
  try {
    const jaxqc::gpu::Driver& d = jaxqc::gpu::driver();
    jaxqc::gpu::Device device;
    int major = 0, minor = 0;
    jaxqc::gpu::check(d.DeviceGet(&device, ordinal), "cuDeviceGet");
    jaxqc::gpu::check(d.DeviceGetAttribute(&major, 75, device), "cuDeviceGetAttribute");
    jaxqc::gpu::check(d.DeviceGetAttribute(&minor, 76, device), "cuDeviceGetAttribute");
    return major * 10 + minor;
  } catch (const std::exception& e) {
    std::strncpy(message, e.what(), static_cast<size_t>(size) - 1);
    message[size - 1] = 0;
    return -1;
  }
}

// The few parts of the CUDA driver that the handlers need. libcuda is opened at run time: nothing of CUDA is needed to build,
// and a machine without a GPU can load this library.
#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <string>

namespace jaxqc::gpu {

using Result = int;
using Device = int;
using Context = void*;
using Stream = void*;
using Event = void*;
using Library = void*;
using Kernel = void*;    // CUkernel: valid on every device
using Function = void*;  // CUfunction: a kernel in one context

constexpr int kMultiprocessorCount = 16;       // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr int kMaxSharedOptin = 97;            // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
constexpr int kMaxShared = 81;                 // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
constexpr int kReservedShared = 111;           // CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK
constexpr int kCarveout = 9;                   // CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
constexpr int kMaxDynamicShared = 8;           // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kStaticShared = 1;               // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
constexpr unsigned kNonBlocking = 1;           // CU_STREAM_NON_BLOCKING
constexpr unsigned kNoTiming = 2;              // CU_EVENT_DISABLE_TIMING

#define JAXQC_DRIVER_FUNCTIONS(X)                                                                                          \
  X(Init, "cuInit", (unsigned))                                                                                            \
  X(GetErrorName, "cuGetErrorName", (Result, const char**))                                                                \
  X(GetErrorString, "cuGetErrorString", (Result, const char**))                                                            \
  X(DeviceGet, "cuDeviceGet", (Device*, int))                                                                              \
  X(DeviceGetCount, "cuDeviceGetCount", (int*))                                                                            \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))                                                       \
  X(PrimaryRetain, "cuDevicePrimaryCtxRetain", (Context*, Device))                                                         \
  X(CtxPush, "cuCtxPushCurrent_v2", (Context))                                                                             \
  X(CtxPop, "cuCtxPopCurrent_v2", (Context*))                                                                              \
  X(LibraryLoadData, "cuLibraryLoadData", (Library*, const void*, const int*, void**, unsigned, const int*, void**, unsigned)) \
  X(LibraryGetKernel, "cuLibraryGetKernel", (Kernel*, Library, const char*))                                               \
  X(KernelGetFunction, "cuKernelGetFunction", (Function*, Kernel))                                                         \
  X(KernelGetAttribute, "cuKernelGetAttribute", (int*, int, Kernel, Device))                                               \
  X(KernelSetAttribute, "cuKernelSetAttribute", (int, int, Kernel, Device))                                                \
  X(Occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int*, Function, int, size_t))                               \
  X(StreamCreate, "cuStreamCreate", (Stream*, unsigned))                                                                   \
  X(StreamWaitEvent, "cuStreamWaitEvent", (Stream, Event, unsigned))                                                       \
  X(EventCreate, "cuEventCreate", (Event*, unsigned))                                                                      \
  X(EventRecord, "cuEventRecord", (Event, Stream))                                                                         \
  X(MemsetD8Async, "cuMemsetD8Async", (unsigned long long, unsigned char, size_t, Stream))                                 \
  X(LaunchKernel, "cuLaunchKernel",                                                                                        \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**))

struct Driver {
#define JAXQC_DECLARE(name, symbol, arguments) Result(*name) arguments = nullptr;
  JAXQC_DRIVER_FUNCTIONS(JAXQC_DECLARE)
#undef JAXQC_DECLARE
};

// The driver, opened and initialised at the first call; throws with the cause where there is none.
inline const Driver& driver() {
  static const Driver instance = [] {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) throw std::runtime_error(std::string("the NVIDIA driver library libcuda.so.1 could not be opened: ") + dlerror());
    Driver d;
#define JAXQC_RESOLVE(name, symbol, arguments)                                                                         \
  d.name = reinterpret_cast<Result(*) arguments>(dlsym(handle, symbol));                                               \
  if (!d.name) throw std::runtime_error("the NVIDIA driver lacks " symbol ": it is older than CUDA 12; update it");
    JAXQC_DRIVER_FUNCTIONS(JAXQC_RESOLVE)
#undef JAXQC_RESOLVE
    Result status = d.Init(0);
    if (status) throw std::runtime_error("cuInit failed with error " + std::to_string(status) + ": is there an NVIDIA GPU?");
    return d;
  }();
  return instance;
}

inline std::string describe(Result status) {
  const char *name = nullptr, *text = nullptr;
  driver().GetErrorName(status, &name);
  driver().GetErrorString(status, &text);
  return std::string(name ? name : "unknown error") + " (" + (text ? text : "no description") + ")";
}

inline void check(Result status, const std::string& what) {
  if (status) throw std::runtime_error(what + " failed: " + describe(status));
}

}  // namespace jaxqc::gpu

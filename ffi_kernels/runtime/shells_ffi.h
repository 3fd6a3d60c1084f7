// Shared parts of the FFI handlers: exceptions become errors that XLA reports, work runs on XLA's thread pool.
#pragma once
#include <exception>
#include <stdexcept>
#include <string>

#include "finite.h"
#include "pair_cache.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace jaxqc {

inline void check(bool ok, const char* sentence) {
  if (!ok) throw std::invalid_argument(sentence);
}

template <class Body>
xla::ffi::Error guarded(Body&& body) {
  try {
    body();
    return xla::ffi::Error::Success();
  } catch (const std::invalid_argument& e) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kInvalidArgument, std::string("jaxqc: ") + e.what());
  } catch (const std::bad_alloc&) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kResourceExhausted, "jaxqc: the machine has too little memory for this calculation");
  } catch (const std::exception& e) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kInternal, std::string("jaxqc: ") + e.what());
  }
}

inline Runner pool_runner(xla::ffi::ThreadPool& pool) {
  return [&pool](int count, const std::function<void(int, int)>& job) {
    parallel_for(count, job, [&pool](auto helper) { pool.Schedule(std::move(helper)); });
  };
}

inline void check_share(int part, int parts) { check(parts > 0 && part >= 0 && part < parts, "the part of the work must be one of its parts"); }

// What every J/K handler is given first: the shells and the kind of build, which part of the work to do, then centres, exponents,
// coefficients and densities.
inline auto jk_binding() {
  typedef xla::ffi::Buffer<xla::ffi::F64> Array;
  return xla::ffi::Ffi::Bind()
      .Ctx<xla::ffi::ThreadPool>()
      .Attr<xla::ffi::Span<const int32_t>>("ls")
      .Attr<xla::ffi::Span<const int32_t>>("nprims")
      .Attr<bool>("cart")
      .Attr<bool>("coulomb")
      .Attr<bool>("exchange")
      .Attr<double>("omega")
      .Attr<double>("threshold")
      .Attr<int32_t>("parts")
      .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
      .Arg<Array>()
      .Arg<Array>()
      .Arg<Array>()
      .Arg<Array>();
}

}  // namespace jaxqc

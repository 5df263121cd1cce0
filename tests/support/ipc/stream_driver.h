// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StreamDriver` is what ranks that share a device need of it: memory that
// other processes can open, and operations that a stream carries out in order.

#include "tessera/runtime/comm/shm_reduce.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace tessera::runtime::ipc {

/// A number in memory that all ranks share. Streams and hosts write it and wait
/// for it.
using StreamFlag = std::atomic<uint32_t>;
static_assert(sizeof(StreamFlag) == sizeof(uint32_t));

/// Whether a flag has reached `value`. Flags count on past 2^32, as for
/// cuStreamWaitValue32(CU_STREAM_WAIT_VALUE_GEQ): only the distance counts.
inline bool has_reached(const StreamFlag& flag, uint32_t value) {
  return static_cast<int32_t>(flag.load() - value) >= 0;
}

/// A device as IpcQueue uses it. Thread-safe. Every function throws
/// tessera::Error when the device refuses.
class StreamDriver {
 public:
  /// Names a stream; a cudaStream_t on CUDA.
  using Stream = void*;

  virtual ~StreamDriver() = default;

  virtual c10::Device device() const = 0;
  /// The stream to which the calling thread issues operators.
  virtual Stream current_stream() = 0;

  // Operations of a stream: they return at once, and each begins when the
  // earlier ones on this stream have ended.

  virtual void copy(
      Stream stream,
      std::byte* to,
      const std::byte* from,
      int64_t bytes) = 0;
  /// reduce_terms().
  virtual void reduce(
      Stream stream,
      std::span<const std::byte* const> terms,
      std::byte* out,
      int64_t numel,
      c10::ScalarType dtype,
      ReduceKind kind) = 0;
  /// Writes a flag; who sees the value sees all that the stream did before.
  virtual void write_flag(Stream stream, StreamFlag& flag, uint32_t value) = 0;
  /// Holds the stream, not the host, until the flag has reached `value`.
  virtual void wait_flag(
      Stream stream,
      const StreamFlag& flag,
      uint32_t value) = 0;

  // Memory. The names are those of CUDA's IPC: the process that allocated an
  // array must not free it before the others have closed it.

  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void free(std::byte* array) noexcept = 0;
  /// Text by which other processes open an array of allocate().
  virtual std::string export_array(std::byte* array) = 0;
  /// @param handle export_array() of another process.
  virtual std::byte* open_array(const std::string& handle) = 0;
  virtual void close_array(std::byte* array) noexcept = 0;
  /// Lets streams access flags in [begin, begin + bytes), whole pages.
  virtual void register_flags(void* begin, int64_t bytes) = 0;
  virtual void unregister_flags(void* begin) noexcept = 0;
};

} // namespace tessera::runtime::ipc

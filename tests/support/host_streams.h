// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HostStreams` is a StreamDriver on host memory: a stream is a queue of
// operations with a thread of its own, and arrays are memory that forked ranks
// share.

#include "support/ipc/stream_driver.h"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace tessera::tests {

/// Ends the process with a message where CUDA's behavior is undefined: flags
/// that are not registered, and arrays that are freed while a live process has
/// them open.
class HostStreams : public runtime::ipc::StreamDriver {
 public:
  /// @param seed of the pauses that streams make between operations.
  explicit HostStreams(unsigned seed);
  /// Drops what the streams have not done.
  ~HostStreams() override;

  /// A stream, which becomes the current one of all threads.
  Stream new_stream();
  void make_current(Stream stream);
  /// Issues `operation` on the current stream, like an operator.
  void run(std::function<void()> operation);
  /// Blocks until all streams have run dry.
  /// @return false if `limit` passes first.
  bool synchronize(std::chrono::milliseconds limit);

  c10::Device device() const override {
    return c10::kCPU;
  }
  Stream current_stream() override;
  void copy(Stream stream, std::byte* to, const std::byte* from, int64_t bytes)
      override;
  void reduce(
      Stream stream,
      std::span<const std::byte* const> terms,
      std::byte* out,
      int64_t numel,
      c10::ScalarType dtype,
      runtime::ReduceKind kind) override;
  void write_flag(Stream stream, runtime::ipc::StreamFlag& flag, uint32_t value)
      override;
  void wait_flag(
      Stream stream,
      const runtime::ipc::StreamFlag& flag,
      uint32_t value) override;
  std::byte* allocate(int64_t bytes) override;
  void free(std::byte* array) noexcept override;
  std::string export_array(std::byte* array) override;
  std::byte* open_array(const std::string& handle) override;
  void close_array(std::byte* array) noexcept override;
  void register_flags(void* begin, int64_t bytes) override;
  void unregister_flags(void* begin) noexcept override;

 private:
  class Queue;
  struct Array {
    int file = -1;
    int64_t bytes = 0;
  };

  std::byte* map(int file, int64_t bytes);
  void check_registered(const runtime::ipc::StreamFlag& flag);

  unsigned seed_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Queue>> queues_;
  Queue* current_ = nullptr;
  std::map<std::byte*, Array> arrays_;
  std::map<void*, int64_t> flags_; ///< bytes, by address
};

} // namespace tessera::tests

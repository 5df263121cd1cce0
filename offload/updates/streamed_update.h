// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StreamedUpdate` updates state that rests in host memory on the device of the
// parameters: piece by piece it is copied to the device, updated and copied
// back.

#include "tessera/runtime/kernels/update_segments.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/resting_tensor.h"
#include "tessera/runtime/streams/stream_lane.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace tessera::offload {

/// One run to update.
struct StreamedSegment {
  /// Moments, if there are any, are in host memory.
  runtime::UpdateTensors tensors;
  bool master_on_host = false; ///< else on the device
};

/// A stretch of a run while it is on the device.
struct StreamedChunk {
  size_t segment = 0; ///< its index
  int64_t begin = 0; ///< its first element in the run
  runtime::UpdateTensors tensors;
};

/// [Note: streamed updates] A page passes in pieces, of any size and number of
/// runs, through three buffers on the device that together take a fixed number
/// of bytes. Three lanes copy state in, update it, and copy it back, so that
/// while one piece is updated the next one arrives and the previous one leaves;
/// events order them, and the host only issues. On the CPU "the device" is the
/// CPU: the same pieces are copied, updated and copied back synchronously.
///
/// Not thread-safe, but may be used by one thread after another.
class StreamedUpdate {
 public:
  static constexpr int64_t kBuffers = 3;

  /// @param device of the parameters.
  /// @param limit_bytes of all buffers together.
  StreamedUpdate(c10::Device device, int64_t limit_bytes);
  /// Waits for all copies.
  ~StreamedUpdate();
  StreamedUpdate(const StreamedUpdate&) = delete;
  StreamedUpdate& operator=(const StreamedUpdate&) = delete;

  /// The bytes of all buffers for state of `bytes` in `segments` runs.
  static int64_t bytes_for(
      int64_t bytes,
      int64_t segments,
      int64_t limit_bytes);

  /// Records that state of `bytes` in `segments` runs will pass in one run();
  /// call it before allocate().
  void need(int64_t bytes, int64_t segments);
  /// Bytes of all buffers, allocated or not; 0 if nothing needs them.
  int64_t bytes() const {
    return kBuffers * buffer_bytes_;
  }
  void allocate(MemoryLedger& ledger);

  /// Updates pieces of one dtype; called for each full buffer, with the
  /// computing lane as the current stream.
  using Update = std::function<void(const std::vector<StreamedChunk>&)>;

  /// Issues the update of all runs, after what was issued to the current
  /// stream. Their tensors on the device must not be used before join() or
  /// mark(), nor their state on the host before wait() or as note_use() says.
  void run(const std::vector<StreamedSegment>& segments, const Update& update);

  /// Returns `tensor`, which is in memory, for run(): its lanes wait in place
  /// of the host until earlier copies have ended.
  at::Tensor open(const runtime::RestingTensor& tensor) const;

  /// Makes later users of `tensor` wait for what was issued by run().
  void note_use(const runtime::RestingTensor& tensor) const;

  /// Makes what is issued to the current stream from now on wait for the
  /// updates, but not for the copies back.
  void join() const {
    mark().block_current(device_);
  }
  /// A mark after the updates that were issued so far.
  runtime::StreamMarks mark() const {
    return updating_.mark();
  }

  /// Blocks until all state is back in host memory.
  void wait() const;

 private:
  struct Buffer {
    at::Tensor memory; ///< [buffer_bytes_] uint8
    runtime::StreamMarks free; ///< after the last copy back
  };
  /// A stretch of a tensor on both sides.
  struct Passage {
    at::Tensor on_host;
    at::Tensor on_device;
  };

  /// Tensors that the lanes use until `done`.
  struct Held {
    c10::Event done;
    std::vector<at::Tensor> tensors;
  };

  void hold(const std::vector<StreamedSegment>& segments);
  StreamedChunk place(
      const StreamedSegment& segment,
      int64_t begin,
      int64_t numel,
      int64_t& used,
      const at::Tensor& memory,
      std::vector<Passage>& passages) const;

  c10::Device device_;
  int64_t limit_bytes_;
  int64_t buffer_bytes_ = 0; ///< per buffer
  std::array<Buffer, kBuffers> buffers_;
  size_t next_ = 0;
  runtime::StreamLane arriving_;
  runtime::StreamLane updating_;
  runtime::StreamLane leaving_;
  std::deque<Held> held_;
};

} // namespace tessera::offload

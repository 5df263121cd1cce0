// SPDX-License-Identifier: Apache-2.0
#pragma once
// Updates by the parameters' device of state that rests in host memory: piece
// by piece it comes to the device, is updated there and goes back.

#include "tessera/runtime/kernels/update_runs.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/resting_tensor.h"
#include "tessera/runtime/memory/stream_lane.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace tessera {

/// One run to update.
struct StreamedRun {
  /// Both moments, where there are any, are in host memory.
  UpdateTensors tensors;
  bool master_on_host = false; ///< else on the device
};

/// A stretch of a run while it is on the device.
struct StreamedPiece {
  size_t run = 0; ///< which one
  int64_t begin = 0; ///< its first element there
  UpdateTensors tensors;
};

/// [Note: streamed updates] A group passes in pieces, of any size and number of
/// runs, through three buffers of the device that together take a fixed number
/// of bytes. Three lanes bring state in, update it, and bring it back, so that
/// while one piece is updated the next one arrives and the last one leaves;
/// events order them, and the host only issues. On the CPU "the device" is the
/// CPU: the same pieces are copied, updated and copied back where they stand.
///
/// Not thread-safe, but may be used from one thread after another.
class StreamedUpdate {
 public:
  static constexpr int64_t kBuffers = 3;
  /// The least that can be asked for: a page for each.
  static constexpr int64_t kMinBytes = kBuffers * 4096;

  /// @param device of the parameters. @param limit_bytes of all buffers.
  StreamedUpdate(c10::Device device, int64_t limit_bytes);
  /// Waits.
  ~StreamedUpdate();
  StreamedUpdate(const StreamedUpdate&) = delete;
  StreamedUpdate& operator=(const StreamedUpdate&) = delete;

  /// What all buffers take for state of so many bytes in so many runs.
  static int64_t bytes_for(int64_t bytes, int64_t runs, int64_t limit_bytes);

  /// State of `bytes`, in `runs` runs, is going to pass at once; before
  /// allocate().
  void need(int64_t bytes, int64_t runs);
  /// Of all buffers, allocated or not; 0 when nothing needs them.
  int64_t bytes() const {
    return kBuffers * buffer_bytes_;
  }
  void allocate(MemoryLedger& ledger);

  /// Updates pieces of one dtype; called with each buffer that is full, the
  /// lane that computes being current.
  using Update = std::function<void(const std::vector<StreamedPiece>&)>;

  /// Issues the update of all runs, after what was issued to the current
  /// stream. Nobody touches their tensors on the device before join() or
  /// mark(), nor their state on the host before wait() or as note_use() says.
  void run(const std::vector<StreamedRun>& runs, const Update& update);

  /// Whoever uses `tensor` from now on comes after what was run().
  void note_use(const RestingTensor& tensor) const;

  /// What is issued to the current stream from now on comes after the updates,
  /// but not after the ways back.
  void join() const {
    mark().block_current(device_);
  }
  /// Behind the updates that were issued, for whoever is to come after them.
  StreamMarks mark() const {
    return updating_.mark();
  }

  /// Blocks until all state is back.
  void wait() const;

 private:
  struct Buffer {
    at::Tensor memory; ///< [buffer_bytes_] uint8
    StreamMarks free; ///< behind the last way back
  };
  /// A tensor's stretch on both sides.
  struct Passage {
    at::Tensor on_host;
    at::Tensor on_device;
  };

  /// What the lanes use until then.
  struct Held {
    c10::Event done;
    std::vector<at::Tensor> tensors;
  };

  void hold(const std::vector<StreamedRun>& runs);
  StreamedPiece place(
      const StreamedRun& run,
      int64_t begin,
      int64_t numel,
      int64_t& used,
      const at::Tensor& memory,
      std::vector<Passage>& passages) const;

  c10::Device device_;
  int64_t limit_bytes_;
  int64_t buffer_bytes_ = 0; ///< of one
  std::array<Buffer, kBuffers> buffers_;
  size_t next_ = 0;
  StreamLane arriving_;
  StreamLane updating_;
  StreamLane leaving_;
  std::deque<Held> held_;
};

} // namespace tessera

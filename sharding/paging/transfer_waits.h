// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TransferWaits` records how long compute waits for transfers: gathers,
// reductions, tiers.

#include "tessera/runtime/streams/stream_time.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace tessera {

/// Records the waits of one module's pager while it is started, and in a
/// trace (runtime/profile/span_recorder.h) while there is one. On a device
/// with streams, a wait is the time that the compute stream, not the host,
/// spends waiting.
///
/// Not thread-safe, like the pager.
class TransferWaits {
 public:
  struct Wait {
    runtime::StreamTime begin;
    runtime::StreamTime end;
    double seconds() const {
      return end.seconds_since(begin);
    }
  };

  /// Starts recording waits of streams of `device`; call take() from time to
  /// time.
  void start(c10::Device device) {
    device_ = device;
    is_noting_ = true;
  }
  /// The device whose streams wait, of traces.
  void set_device(c10::Device device) {
    device_ = device;
  }
  void stop() {
    is_noting_ = false;
    waits_.clear();
  }

  /// Number of waits recorded since the last take().
  size_t count() const {
    return waits_.size();
  }
  std::vector<Wait> take();

  /// Marks that compute waits while it is alive. Nested scopes count once. Does
  /// nothing without start().
  class Scope {
   public:
    explicit Scope(TransferWaits& waits)
        : waits_(
              !waits.is_open_ && (waits.is_noting_ || is_traced()) ? &waits
                                                                   : nullptr) {
      if (waits_ != nullptr) {
        waits_->open();
      }
    }
    ~Scope() {
      if (waits_ != nullptr) {
        waits_->close();
      }
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    TransferWaits* waits_;
  };

 private:
  static bool is_traced();
  void open();
  void close() noexcept;

  bool is_noting_ = false;
  bool is_open_ = false;
  c10::Device device_{c10::DeviceType::CPU};
  runtime::StreamTime opened_;
  std::vector<Wait> waits_;
  std::shared_ptr<void> span_; ///< of a trace
};

} // namespace tessera

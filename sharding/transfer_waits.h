// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long compute stood still for transfers: gathers, reductions, tiers.

#include "tessera/runtime/memory/stream_time.h"

#include <cstddef>
#include <vector>

namespace tessera {

/// Notes the waits of one module's pager, if asked to. On a device with streams
/// a wait is what the compute stream spends in it, not the host.
///
/// Not thread-safe, as the pager is not.
class TransferWaits {
 public:
  struct Wait {
    StreamTime begin;
    StreamTime end;
    double seconds() const {
      return end.seconds_since(begin);
    }
  };

  /// From here on waits of streams of `device` are noted; take() them now and
  /// then.
  void start(c10::Device device) {
    device_ = device;
    is_noting_ = true;
  }
  void stop() {
    is_noting_ = false;
    waits_.clear();
  }

  /// Waits noted since the last take().
  size_t count() const {
    return waits_.size();
  }
  std::vector<Wait> take();

  /// While it lives, compute waits. One inside of another counts once. Without
  /// start() it does nothing.
  class Scope {
   public:
    explicit Scope(TransferWaits& waits)
        : waits_(waits.is_noting_ && !waits.is_open_ ? &waits : nullptr) {
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
  void open();
  void close() noexcept;

  bool is_noting_ = false;
  bool is_open_ = false;
  c10::Device device_{c10::DeviceType::CPU};
  StreamTime opened_;
  std::vector<Wait> waits_;
};

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DryHeap` gives CPU tensors addresses without memory behind them and counts
// their bytes.
//
// [Note: dry memory] A dry run executes a program's real code while no operator
// computes. Tensors are CPU tensors whose memory the system provides only if it
// is touched: large blocks are mapped without a reservation and read as zeros.
// So code that reads or writes by pointer works, and only what is skipped on
// purpose (operators, and kernels that ask is_dry_memory()) costs no time and
// no memory. A model of any size fits.

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tessera::runtime {

/// Whether `data` points into memory of a DryHeap: what is stored there means
/// nothing. Costs one load where no dry run is under way. Thread-safe.
bool is_dry_memory(const void* data);

/// The memory of one dry run. Blocks may outlive it. Thread-safe.
class DryHeap : public std::enable_shared_from_this<DryHeap> {
 public:
  /// Bytes that are live after an allocation or a free.
  using Watcher = std::function<void(int64_t live, int64_t change)>;

  /// @param has_values whether what will be stored there has meaning, as in
  ///   small tensors that are really computed. Small blocks always begin so.
  c10::DataPtr allocate(size_t bytes, bool has_values);
  /// Memory of another tier, which is counted elsewhere.
  c10::DataPtr allocate_uncounted(size_t bytes);

  int64_t live_bytes() const {
    return live_;
  }
  int64_t peak_bytes() const {
    return peak_;
  }
  /// The peak begins anew at what is live now.
  void reset_peak() {
    peak_ = live_.load();
  }
  /// Called at every allocation and free, on their thread; null: nothing.
  void watch(Watcher watcher) {
    watcher_ = std::move(watcher);
  }

 private:
  friend struct DryBlock;

  c10::DataPtr make_block(size_t bytes, bool has_values, bool is_counted);
  void count(int64_t change);

  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> peak_{0};
  Watcher watcher_;
};

/// Frees the block that begins at `data`; false if there is none. For the
/// deleter of CPU memory, which raw allocations of libraries share.
bool free_dry_block(void* data);

/// Whether what is stored at `data` has meaning: memory outside of dry runs,
/// or a block of small values. Null has none.
bool has_dry_values(const void* data);

/// Whether `data` points into memory of another tier than the device's.
bool is_uncounted_dry_memory(const void* data);

/// From now on what is stored in the block around `data` has no meaning, or has
/// one.
void set_dry_values(const void* data, bool has_values);

/// The heap that CPU tensors of this thread come from; null outside of dry
/// runs.
struct DryAllocation {
  std::shared_ptr<DryHeap> heap;
  bool has_values = true; ///< of large blocks; small ones have them
};
DryAllocation& dry_allocation();

} // namespace tessera::runtime

// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/transfer_rates.h"

#include "tessera/runtime/memory/stream_lane.h"
#include "tessera/runtime/memory/stream_time.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace tessera::offload {

namespace {

/// One direction.
struct Direction {
  at::Tensor to;
  at::Tensor from;
  runtime::StreamLane lane;
  runtime::StreamTime begin;
  double best = std::numeric_limits<double>::infinity(); ///< seconds

  void issue() {
    const runtime::StreamLane::Scope scope(lane);
    begin = runtime::StreamTime::now(lane.device());
    to.copy_(from, /*non_blocking=*/true);
    if (!lane.is_real()) {
      end(); // it is done
    }
  }
  void end() {
    const runtime::StreamLane::Scope scope(lane);
    best = std::min(
        best, runtime::StreamTime::now(lane.device()).seconds_since(begin));
  }
};

} // namespace

TransferRates measure_transfers(
    HostMemory& memory,
    c10::Device device,
    int64_t bytes) {
  constexpr int kRounds = 4; // the first one also touches the memory
  constexpr const char* kName = "the measurement of transfer rates";
  const auto on_host = [&] {
    return memory.allocate(kName, MemoryPurpose::kStaging, bytes);
  };
  const auto on_device = [&] {
    return at::zeros(
        {bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  };
  Direction in{on_device(), on_host(), runtime::StreamLane(device), {}};
  Direction out{on_host(), on_device(), runtime::StreamLane(device), {}};
  in.lane.follow_current();
  out.lane.follow_current();
  for (int round = 0; round < kRounds; ++round) {
    in.issue();
    out.issue();
    if (in.lane.is_real()) {
      in.end();
      out.end();
    }
  }
  const auto size = static_cast<double>(bytes);
  return {in.best / size, out.best / size};
}

} // namespace tessera::offload

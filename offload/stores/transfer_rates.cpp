// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/transfer_rates.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace tessera::offload {

namespace {

/// So many more copies than the host's work should take: they take longer
/// beside it, and must not end before it.
constexpr double kMoreCopies = 1.25;
constexpr double kMostCopies = 4096;

at::Tensor bytes_on_host(HostMemory& memory, int64_t bytes) {
  return memory.allocate(
      "the measurement of transfer rates", MemoryPurpose::kStaging, bytes);
}

at::Tensor bytes_on(c10::Device device, int64_t bytes) {
  return at::zeros(
      {bytes}, at::TensorOptions().dtype(at::kByte).device(device));
}

} // namespace

void TransferSample::Direction::issue(int64_t copies) {
  const runtime::StreamLane::Scope scope(lane);
  begin = runtime::StreamTime::now(lane.device());
  for (int64_t i = 0; i < copies; ++i) {
    to.copy_(from, /*non_blocking=*/true);
  }
}

double TransferSample::Direction::seconds_since_begin() const {
  const runtime::StreamLane::Scope scope(lane);
  return runtime::StreamTime::now(lane.device()).seconds_since(begin);
}

TransferSample::TransferSample(
    HostMemory& memory,
    c10::Device device,
    int64_t bytes)
    : bytes_(bytes),
      directions_{
          {{bytes_on(device, bytes),
            bytes_on_host(memory, bytes),
            runtime::StreamLane(device),
            {}},
           {bytes_on_host(memory, bytes),
            bytes_on(device, bytes),
            runtime::StreamLane(device),
            {}}}} {
  for (const Direction& direction : directions_) {
    direction.lane.follow_current();
  }
}

TransferRates TransferSample::rates(double to_device, double to_host) const {
  const auto size = static_cast<double>(bytes_);
  return {to_device / size, to_host / size};
}

TransferRates TransferSample::measure() {
  constexpr int kRounds = 4; // the first one also touches the memory
  for (Direction& direction : directions_) {
    direction.alone = std::numeric_limits<double>::infinity();
  }
  for (int round = 0; round < kRounds; ++round) {
    std::array<double, 2> seconds{};
    for (size_t i = 0; i < directions_.size(); ++i) {
      directions_[i].issue(1);
      if (!directions_[i].lane.is_real()) {
        seconds[i] = directions_[i].seconds_since_begin(); // it is done
      }
    }
    for (size_t i = 0; i < directions_.size(); ++i) {
      if (directions_[i].lane.is_real()) {
        seconds[i] = directions_[i].seconds_since_begin();
      }
      directions_[i].alone = std::min(directions_[i].alone, seconds[i]);
    }
  }
  return rates(directions_[0].alone, directions_[1].alone);
}

TransferRates TransferSample::measure_during(
    double seconds,
    const std::function<void()>& work) {
  if (!directions_[0].lane.is_real()) {
    work();
    return rates(directions_[0].alone, directions_[1].alone);
  }
  using Clock = std::chrono::steady_clock;
  std::array<int64_t, 2> copies{};
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < directions_.size(); ++i) {
    copies[i] = static_cast<int64_t>(std::clamp(
        std::ceil(kMoreCopies * seconds / directions_[i].alone),
        1.0,
        kMostCopies));
    directions_[i].issue(copies[i]);
  }
  work();
  const double busy =
      std::chrono::duration<double>(Clock::now() - begin).count();
  std::array<double, 2> each{};
  for (size_t i = 0; i < directions_.size(); ++i) {
    each[i] = seconds_while_busy(
        copies[i],
        directions_[i].seconds_since_begin(),
        busy,
        directions_[i].alone);
  }
  return rates(each[0], each[1]);
}

double seconds_while_busy(
    int64_t copies,
    double all,
    double busy,
    double alone) {
  const auto count = static_cast<double>(copies);
  const double behind = std::max(0.0, all - busy) / alone; // copies
  const double beside = count - behind;
  // A few copies behind the work are noise, not a rate.
  return beside <= 0 ? alone : std::max(alone, std::min(all, busy) / beside);
}

} // namespace tessera::offload

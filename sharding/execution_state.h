// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a forward depends on beside its arguments: random generators and
// autocast. Taken before it and put back to run it a second time.

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace tessera {

/// States of the default generators of the CPU and of some CUDA devices.
class RandomState {
 public:
  RandomState() = default;
  /// Takes the CPU's, and that of every CUDA device that a tensor is on. The
  /// state of a CUDA generator lies on the host: nothing synchronises.
  static RandomState take(const std::vector<at::Tensor>& tensors);
  void put_back() const;
  /// The present states of the same generators.
  RandomState now() const;

 private:
  void add(c10::Device device);

  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

/// Whether autocast is on and to what type, for CPU and CUDA.
class AutocastState {
 public:
  static AutocastState take();
  /// @param cache whether casts of weights are kept.
  void put_back(bool cache) const;
  bool cache() const {
    return cache_;
  }

 private:
  struct PerDevice {
    bool enabled = false;
    at::ScalarType dtype = at::kFloat;
  };
  PerDevice cpu_;
  PerDevice cuda_;
  bool cache_ = true;
};

/// While it lives, generators and autocast are as they were then; afterwards
/// as they were before.
class ExecutionStateScope {
 public:
  ExecutionStateScope(const RandomState& random, const AutocastState& autocast);
  ~ExecutionStateScope();
  ExecutionStateScope(const ExecutionStateScope&) = delete;
  ExecutionStateScope& operator=(const ExecutionStateScope&) = delete;

 private:
  RandomState random_before_;
  AutocastState autocast_before_;
};

/// While it lives, autocast keeps no casts of weights. One made without
/// gradients in a first forward would be taken for the recomputation's.
class NoAutocastCache {
 public:
  NoAutocastCache();
  ~NoAutocastCache();
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool before_;
};

} // namespace tessera

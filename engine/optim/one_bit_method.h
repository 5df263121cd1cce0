// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OneBitMethod` is the base of optimizers whose ranks exchange momentum in one
// bit per element in place of gradients.

#include "tessera/engine/optim/compressed_average.h"
#include "tessera/engine/optim/elementwise_optimizer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::engine {

/// [Note: compressed steps] In some steps, gradients are averaged over the
/// ranks and the method updates like any other. In the others, GradientBucket
/// keeps this rank's own gradients; the method adds them to the momentum and
/// averages that ([Note: averages in one bit]). Every rank has all of the state
/// and updates all weights, which must be whole: the pages' shard axis has one
/// rank (ShardingOptions::shard_ranks = 1), and replicas exchange momentum.
///
/// Elements whose second moment is zero had no gradient in any averaged step:
/// nothing is known of their size, so they are neither sent nor updated.
///
/// The errors of a CompressedAverage are a rank's own and depend on the number
/// of ranks; where a checkpoint has none for this rank, they begin at zero.
class OneBitMethod : public ElementwiseMethod {
 public:
  /// @param state_names the first two are the moments.
  /// @throws tessera::Error where pages are divided, or something does not rest
  ///   on the device of the parameters.
  OneBitMethod(
      const char* optimizer,
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      std::vector<std::string> state_names,
      MakeStep make_step);

  bool is_elementwise() const final {
    return false;
  }
  void add_state_bytes(TierBytes& bytes) const override;
  void allocate(const StateMemory& memory) override;
  void begin_backward(const sharding::PageTable& pages) final;
  void step(const StepInput& input) final;
  void visit_state(StateVisitor& visitor) override;

 protected:
  /// A run with its tensors, in a compressed step.
  struct Segment {
    const OptimizedParameter& parameter;
    const MethodShard& part;
    const offload::ShardTensors& shard;
    const ParameterSegment& segment;

    /// Of state tensor `i`.
    at::Tensor state(size_t i) const {
      return shard.state[i].narrow(0, segment.state_offset, segment.numel);
    }
    at::Tensor master() const {
      return shard.master.narrow(0, segment.shard_offset, segment.numel);
    }
    /// This rank's own, or the average.
    at::Tensor gradient() const {
      return parameter.scaled(
          shard.gradient.narrow(0, segment.shard_offset, segment.numel)
              .to(shard.master.scalar_type()));
    }
    /// Stores the rounded weights, after the master was written.
    void round() const;
  };

  /// Whether the gradients of a step are averaged. @param step from 1.
  virtual bool averages(int64_t step) const = 0;
  /// A step with averaged gradients.
  virtual void averaged_step(const StepInput& input, int64_t step) = 0;
  /// Updates the weights of a run, whose first state is the new momentum.
  virtual void update(
      const Segment& segment,
      const StepInput& input,
      int64_t step) = 0;
  /// The factor by which the momentum of a parameter is sent, and its inverse
  /// received.
  virtual double momentum_factor(
      const OptimizedParameter& /*parameter*/) const {
    return 1;
  }
  virtual double beta1() const = 0;
  /// Stores the new momentum of a run, in place of the one before.
  virtual void receive(const Segment& segment, const at::Tensor& momentum) {
    segment.state(0).copy_(momentum);
  }

  /// Adds the average gradient of a run to its momentum and second moment, in
  /// steps that average.
  void add_to_moments(const Segment& segment, double beta2) const;

  /// Calls `body` for the runs of all parameters with a gradient.
  void for_each_segment(
      const StepInput& input,
      const std::function<void(const Segment&)>& body);

 private:
  /// Of the parameter with most: the number of the step in progress, or of the
  /// last one.
  int64_t steps() const;
  void compressed_step(const StepInput& input, int64_t step);
  void exchange_momentum(MethodShard& part, const offload::ShardTensors& shard);
  Communicator& replicas(const MethodShard& part) const;

  const char* optimizer_;
  std::vector<OptimizedParameter*> parameters_;
  std::vector<CompressedAverage> averages_; ///< per part
  // Room for the largest part.
  at::Tensor values_;
  at::Tensor used_;
  at::Tensor wire_;
};

} // namespace tessera::engine

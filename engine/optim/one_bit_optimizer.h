// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OneBitOptimizer` is what optimizers with a OneBitMethod have in common.

#include "tessera/engine/optim/optimizer.h"

#include <memory>
#include <vector>

namespace tessera::engine {

/// @param Method a OneBitMethod that is constructed from (context, parameters,
///   options). @param kMoments state tensors of the method.
template <typename Options, typename Method, int kMoments = 2>
class OneBitOptimizer : public OptimizerWith<Options> {
 public:
  double default_weight_decay() const override {
    return 0.01;
  }
  bool sends_momentum() const override {
    return true;
  }
  bool may_rest_in_files() const override {
    return false;
  }

 private:
  /// With the errors of both sides.
  int moments(const Options& /*options*/) const override {
    return kMoments + 2;
  }
  void add(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const Options& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const override {
    methods.push_back(std::make_unique<Method>(context, parameters, options));
  }
};

} // namespace tessera::engine

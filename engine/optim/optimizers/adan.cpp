// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizers/adan.h"

#include "tessera/engine/optim/elementwise_optimizer.h"
#include "tessera/engine/optim/optimizers/adam_fields.h"

#include <string>
#include <vector>

namespace tessera {

namespace engine {

namespace {

class Adan : public ElementwiseOptimizer<AdanOptions, runtime::AdanStep> {
 public:
  const char* name() const override {
    return "Adan";
  }
  const char* key() const override {
    return "adan";
  }

 private:
  void fields(runtime::OptionFields& fields, AdanOptions& options)
      const override {
    fields.triple(
        "betas",
        options.beta1,
        options.beta2,
        options.beta3,
        kBetaRange,
        "decay rates of the moments of gradients, of their differences, and of squares");
    visit_eps(fields, options);
    fields.field(
        "no_prox",
        options.no_prox,
        "multiply weights by 1 - lr * weight_decay before the update, instead of dividing them by 1 + lr * weight_decay after it");
  }
  std::vector<std::string> state_names(
      const AdanOptions& /*options*/) const override {
    return {"exp_avg", "exp_avg_sq", "exp_avg_diff", "previous_grad"};
  }
  Step step(const AdanOptions& options) const override {
    runtime::AdanStep step;
    step.beta1 = options.beta1;
    step.beta2 = options.beta2;
    step.beta3 = options.beta3;
    step.eps = options.eps;
    step.no_prox = options.no_prox;
    return step;
  }
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<AdanOptions> /*options*/) {
  static const engine::Adan adan;
  return adan;
}

} // namespace tessera

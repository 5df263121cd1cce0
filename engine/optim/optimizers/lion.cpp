// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizers/lion.h"

#include "tessera/engine/optim/elementwise_optimizer.h"
#include "tessera/engine/optim/optimizers/adam_fields.h"

#include <string>
#include <vector>

namespace tessera {

namespace engine {

namespace {

class Lion : public ElementwiseOptimizer<LionOptions, runtime::LionStep> {
 public:
  const char* name() const override {
    return "Lion";
  }
  const char* key() const override {
    return "lion";
  }

 private:
  void fields(runtime::OptionFields& fields, LionOptions& options)
      const override {
    visit_betas(fields, options);
  }
  std::vector<std::string> state_names(
      const LionOptions& /*options*/) const override {
    return {"exp_avg"};
  }
  Step step(const LionOptions& options) const override {
    runtime::LionStep step;
    step.beta1 = options.beta1;
    step.beta2 = options.beta2;
    return step;
  }
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<LionOptions> /*options*/) {
  static const engine::Lion lion;
  return lion;
}

} // namespace tessera

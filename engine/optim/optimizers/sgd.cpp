// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizers/sgd.h"

#include "tessera/engine/optim/elementwise_optimizer.h"

#include <string>
#include <vector>

namespace tessera {

namespace engine {

namespace {

class Sgd : public ElementwiseOptimizer<SgdOptions, runtime::SgdStep> {
 public:
  const char* name() const override {
    return "SGD";
  }
  const char* key() const override {
    return "sgd";
  }

 private:
  void fields(runtime::OptionFields& fields, SgdOptions& options)
      const override {
    fields.field("momentum", options.momentum, {.min = 0}, "momentum");
    fields.field(
        "dampening",
        options.dampening,
        {.min = 0},
        "dampening of the momentum");
    fields.field("nesterov", options.nesterov, "Nesterov's momentum");
  }
  void check_options(const SgdOptions& options) const override {
    TESSERA_CHECK(
        !options.nesterov || (options.momentum > 0 && options.dampening == 0),
        "SGD: nesterov needs a momentum above 0 and no dampening; they are {} and {}.",
        options.momentum,
        options.dampening);
  }
  std::vector<std::string> state_names(
      const SgdOptions& options) const override {
    return options.momentum == 0 ? std::vector<std::string>{}
                                 : std::vector<std::string>{"momentum_buffer"};
  }
  Step step(const SgdOptions& options) const override {
    runtime::SgdStep step;
    step.momentum = options.momentum;
    step.dampening = options.dampening;
    step.nesterov = options.nesterov;
    return step;
  }
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<SgdOptions> /*options*/) {
  static const engine::Sgd sgd;
  return sgd;
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizers/adam.h"

#include "tessera/engine/optim/elementwise_optimizer.h"
#include "tessera/engine/optim/optimizers/adam_fields.h"

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

namespace engine {

namespace {

/// AdamW and Adam, which differ in their weight decay.
template <typename Options>
class AdamFamily : public ElementwiseOptimizer<Options, runtime::AdamWStep> {
 public:
  AdamFamily(
      const char* name,
      const char* key,
      double weight_decay,
      bool decouples_decay)
      : name_(name),
        key_(key),
        weight_decay_(weight_decay),
        decouples_decay_(decouples_decay) {}

  const char* name() const override {
    return name_;
  }
  const char* key() const override {
    return key_;
  }
  double default_weight_decay() const override {
    return weight_decay_;
  }
  /// Both have the same moments.
  bool continues(std::string_view saved) const override {
    return saved == "adamw" || saved == "adam";
  }

 private:
  void fields(runtime::OptionFields& fields, Options& options) const override {
    visit_adam_fields(fields, options);
  }
  std::vector<std::string> state_names(
      const Options& /*options*/) const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  runtime::AdamWStep step(const Options& options) const override {
    runtime::AdamWStep step = adamw_step(options);
    step.decoupled_decay = decouples_decay_;
    return step;
  }

  const char* name_;
  const char* key_;
  double weight_decay_;
  bool decouples_decay_;
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<AdamWOptions> /*options*/) {
  static const engine::AdamFamily<AdamWOptions> adamw(
      "AdamW", "adamw", 0.01, /*decouples_decay=*/true);
  return adamw;
}

const engine::Optimizer& optimizer_of(
    std::type_identity<AdamOptions> /*options*/) {
  static const engine::AdamFamily<AdamOptions> adam(
      "Adam", "adam", 0, /*decouples_decay=*/false);
  return adam;
}

} // namespace tessera

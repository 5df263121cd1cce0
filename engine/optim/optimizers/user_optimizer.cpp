// SPDX-License-Identifier: Apache-2.0
// `UserMethod`: a user's torch::optim::Optimizer over views of the shards.
#include "tessera/engine/optim/optimizers/user_optimizer.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/comm/on_all_ranks.h"
#include "tessera/runtime/core/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/serialize.h>
#include <nlohmann/json.hpp>

#include <c10/util/Type.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <typeinfo>
#include <utility>

namespace tessera {

namespace engine {

namespace {

/// Parameters whose rates are equal in every step form one group.
using RateKey = std::pair<double, int64_t>;

class UserMethod : public UpdateMethod {
 public:
  UserMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const UserOptimizerOptions& options)
      : UpdateMethod(context, parameters, {}), options_(options) {}

  // What the optimizer allocates in its first step is not known here.
  void add_state_bytes(TierBytes&) const override {}

  void allocate(const StateMemory& memory) override {
    UpdateMethod::allocate(memory);
    std::map<RateKey, std::vector<at::Tensor>> leaves;
    for (const MethodShard& part : parts_) {
      const offload::UpdateSite& site = *context_.sites[part.group];
      for (const ParameterSegment& segment : part.segments) {
        const ParameterSettings& settings = segment.parameter->settings;
        const RateKey key{settings.lr_scale, settings.frozen_steps};
        Leaf leaf{&segment, part.group, at::Tensor()};
        leaf.tensor = at::empty(
            {0},
            at::TensorOptions()
                .dtype(site.types().master)
                .device(site.device()));
        leaf.tensor.set_requires_grad(true);
        leaves[key].push_back(leaf.tensor);
        leaves_.push_back(std::move(leaf));
      }
    }
    // What is wrong with it does not show on ranks that have no part of these
    // parameters, and wrap() goes on with collectives.
    runtime::on_all_ranks(
        context_.ranks.control(),
        "UserOptimizerOptions::make",
        [&] {
          if (!leaves.empty()) {
            make_optimizer(leaves);
          }
        },
        context_.ranks.watch_failures());
  }

  void step(const StepInput& input) override {
    if (optimizer_ == nullptr) {
      return;
    }
    // A user's optimizer updates everything at once.
    Shards shards;
    for (MethodShard& part : parts_) {
      shards[part.group] = open(input, part);
    }
    bind(shards);
    bool any = false;
    for (Leaf& leaf : leaves_) {
      const ParameterSegment& segment = *leaf.segment;
      at::Tensor& gradient = leaf.tensor.mutable_grad();
      gradient = at::Tensor();
      if (segment.parameter->has_gradient) {
        any = true;
        gradient = segment.parameter->scaled(
            shards.at(leaf.group)
                .gradient.narrow(0, segment.shard_offset, segment.numel)
                .to(leaf.tensor.scalar_type()));
      }
    }
    if (any) {
      set_rates(input);
      optimizer_->step();
    }
    for (MethodShard& part : parts_) {
      round(part, shards.at(part.group));
      close(part, {});
    }
  }

  void visit_state(StateVisitor& visitor) override {
    if (optimizer_ == nullptr) {
      return;
    }
    visitor.opaque(
        "user_optimizer",
        [this] { return save(); },
        [this](const at::Tensor& bytes) { load(bytes); });
  }

 private:
  using Shards = std::map<size_t, offload::ShardTensors>; ///< by page

  struct Leaf {
    const ParameterSegment* segment;
    size_t group;
    at::Tensor tensor; ///< the optimizer's tensor for the run
  };

  /// @param leaves by the rates of their groups.
  void make_optimizer(
      const std::map<RateKey, std::vector<at::Tensor>>& leaves) {
    Shards shards;
    for (MethodShard& part : parts_) {
      shards[part.group] = part.state->open();
    }
    bind(shards);
    for (MethodShard& part : parts_) {
      part.state->close(/*written=*/{}, /*writes_state=*/false);
    }
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const auto& [key, tensors] : leaves) {
      groups.emplace_back(tensors);
      keys_.push_back(key);
    }
    optimizer_ = options_.make(std::move(groups));
    check_made(leaves);
  }

  /// @param given to `make`.
  void check_made(const std::map<RateKey, std::vector<at::Tensor>>& given) {
    constexpr const char* kRemedy =
        "UserOptimizerOptions: {}; pass the parameter groups that `make` is given, which are slices of the model's parameters, to the optimizer's constructor as they are: `return std::make_unique<torch::optim::RMSprop>(std::move(groups), options)`.";
    TESSERA_CHECK(
        optimizer_ != nullptr, kRemedy, "`make` returned no optimizer");
    const auto& made = optimizer_->param_groups();
    TESSERA_CHECK(
        made.size() == given.size(),
        kRemedy,
        formatted(
            "`make` returned an optimizer of {} parameter groups, and was given {}",
            made.size(),
            given.size()));
    size_t i = 0;
    for (const auto& [key, tensors] : given) {
      const std::vector<at::Tensor>& its = made[i++].params();
      for (const at::Tensor& tensor : its) {
        TESSERA_CHECK(
            contains(tensors, tensor),
            kRemedy,
            "`make` returned an optimizer over other tensors than it was given, such as model->parameters(), which the engine has sharded");
      }
      for (const at::Tensor& tensor : tensors) {
        TESSERA_CHECK(
            contains(its, tensor),
            kRemedy,
            formatted(
                "`make` returned an optimizer over {} of the {} tensors of a group: the others would not be trained",
                its.size(),
                tensors.size()));
      }
    }
  }

  static bool contains(
      const std::vector<at::Tensor>& tensors,
      const at::Tensor& tensor) {
    return std::any_of(
        tensors.begin(), tensors.end(), [&](const at::Tensor& other) {
          return other.is_same(tensor);
        });
  }

  /// For checkpoints: "torch::optim::RMSprop".
  std::string type_name() const {
    const torch::optim::Optimizer& optimizer = *optimizer_;
    return c10::demangle(typeid(optimizer).name());
  }

  /// Of each group, the options that `make` has chosen, by name, for
  /// checkpoints. Loading replaces them, and state depends on them.
  nlohmann::json options_of_groups() const {
    nlohmann::json groups = nlohmann::json::array();
    for (const torch::optim::OptimizerParamGroup& group :
         optimizer_->param_groups()) {
      torch::serialize::OutputArchive out;
      try {
        group.options().serialize(out);
      } catch (const c10::Error&) {
        return nlohmann::json::array(); // options of the user's own
      }
      std::stringstream bytes;
      out.save_to(bytes);
      torch::serialize::InputArchive in;
      in.load_from(bytes);
      nlohmann::json& options = groups.emplace_back(nlohmann::json::object());
      for (const std::string& key : in.keys()) {
        if (key != "lr") { // the engine sets it before every step
          c10::IValue value;
          in.read(key, value);
          std::ostringstream text;
          text << value;
          options[key] =
              value.isDouble() ? formatted("{}", value.toDouble()) : text.str();
        }
      }
    }
    return groups;
  }

  /// @param saved options_of_groups() of the checkpoint.
  void check_options(const nlohmann::json& saved) const {
    const nlohmann::json now = options_of_groups();
    for (size_t i = 0; i < std::min(saved.size(), now.size()); ++i) {
      for (const auto& [key, value] : now[i].items()) {
        const auto found = saved[i].find(key);
        TESSERA_CHECK(
            found == saved[i].end() || *found == value,
            "load: the {} of UserOptimizerOptions::make had {} {} when the checkpoint was saved, and has {} now; its state is that of the saved options. Load with the same ones, or load only the weights and begin with new state: Engine::load_weights().",
            type_name(),
            key,
            found->get<std::string>(),
            value.get<std::string>());
      }
    }
  }

  /// Points the leaves to the master weights. The tensors stay the same,
  /// because the optimizer looks up its state by them.
  void bind(const Shards& shards) {
    for (Leaf& leaf : leaves_) {
      leaf.tensor.set_data(
          shards.at(leaf.group)
              .master.narrow(
                  0, leaf.segment->shard_offset, leaf.segment->numel));
    }
  }

  void set_rates(const StepInput& input) {
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto& [lr_scale, frozen_steps] = keys_[i];
      // A group counts its own steps, but parameters join it at different
      // times.
      const bool held = steps_ < frozen_steps;
      optimizer_->param_groups()[i].options().set_lr(
          held ? 0 : input.lr * lr_scale);
    }
    ++steps_;
  }

  void round(const MethodShard& part, const offload::ShardTensors& shard) {
    if (shard.low_precision.defined()) {
      for (const Leaf& leaf : leaves_) {
        if (leaf.group == part.group) {
          shard.low_precision
              .narrow(0, leaf.segment->shard_offset, leaf.segment->numel)
              .copy_(leaf.tensor);
        }
      }
    }
  }

  at::Tensor save() const {
    std::ostringstream out;
    torch::serialize::OutputArchive archive;
    optimizer_->save(archive);
    archive.write("steps", c10::IValue(steps_));
    archive.write("type", c10::IValue(type_name()));
    archive.write("options", c10::IValue(options_of_groups().dump()));
    archive.save_to(out);
    std::string bytes = std::move(out).str();
    return at::from_blob(
               bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte)
        .clone();
  }

  void load(const at::Tensor& bytes) {
    const at::Tensor flat = bytes.contiguous();
    torch::serialize::InputArchive archive;
    archive.load_from(
        static_cast<const char*>(flat.const_data_ptr()),
        static_cast<size_t>(flat.numel()));
    c10::IValue type; // earlier versions have not written it
    TESSERA_CHECK(
        !archive.try_read("type", type) || type.toStringRef() == type_name(),
        "load: UserOptimizerOptions::make returned a {} when the checkpoint was saved, and a {} now, which cannot continue with the other's state. Load with the same optimizer, or load only the weights and begin with new state: Engine::load_weights().",
        type.toStringRef(),
        type_name());
    c10::IValue options; // earlier versions have not written them
    if (archive.try_read("options", options)) {
      check_options(nlohmann::json::parse(options.toStringRef()));
    }
    optimizer_->load(archive);
    c10::IValue steps;
    archive.read("steps", steps);
    steps_ = steps.toInt();
  }

  UserOptimizerOptions options_;
  std::vector<Leaf> leaves_;
  std::vector<RateKey> keys_; ///< of the optimizer's groups
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int64_t steps_ = 0;
};

class UserOptimizer : public OptimizerWith<UserOptimizerOptions> {
 public:
  const char* name() const override {
    return "a user-defined optimizer";
  }
  const char* key() const override {
    return nullptr;
  }
  bool takes_weight_decay() const override {
    return false;
  }
  bool may_rest_in_files() const override {
    return false;
  }

 private:
  void fields(
      runtime::OptionFields& /*fields*/,
      UserOptimizerOptions& /*options*/) const override {}
  int moments(const UserOptimizerOptions& /*options*/) const override {
    return 2;
  }
  void check_options(const UserOptimizerOptions& options) const override {
    TESSERA_CHECK(
        options.make != nullptr,
        "UserOptimizerOptions: make is empty; set it to a function that returns your optimizer.");
  }
  void add(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const UserOptimizerOptions& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const override {
    methods.push_back(
        std::make_unique<UserMethod>(context, parameters, options));
  }
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<UserOptimizerOptions> /*options*/) {
  static const engine::UserOptimizer user;
  return user;
}

} // namespace tessera

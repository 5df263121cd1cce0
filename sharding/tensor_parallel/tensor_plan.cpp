// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/tensor_plan.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/name_patterns.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/tensor_parallel/divided_weight.h"
#include "tessera/sharding/tensor_parallel/local_slice.h"

#include <c10/core/GradMode.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera {

namespace {

/// One parameter to be partitioned.
struct Step {
  at::Tensor parameter;
  std::shared_ptr<const sharding::DividedParameter> divided;
};

TensorSpec spec_over(
    const Communicator& group,
    const std::string& name,
    const at::Tensor& parameter,
    const Shard& placement) {
  TensorSpec spec =
      full_spec({name}, parameter.sizes().vec(), parameter.scalar_type());
  spec.axes.push_back({kTensorAxis, group.size(), group.rank(), placement});
  return spec;
}

/// How a parameter is to be partitioned, and the entry that says so.
struct Planned {
  const TensorPlanEntry* entry = nullptr;
  std::shared_ptr<sharding::DividedParameter> divided;
};

class Planner {
 public:
  explicit Planner(const TensorParallel& tp)
      : tp_(std::make_shared<const TensorParallel>(tp)) {}

  /// Adds the parameters of a module that an entry matches.
  void add(
      const std::string& name,
      torch::nn::Module& module,
      const TensorPlanEntry& entry) {
    const auto parameters = module.named_parameters(/*recurse=*/false);
    const at::Tensor* weight = parameters.find("weight");
    auto* linear = module.as<torch::nn::LinearImpl>();
    auto* table = module.as<torch::nn::EmbeddingImpl>();
    const bool is_table = entry.division == TensorDivision::kVocab;
    TESSERA_CHECK(
        weight != nullptr && weight->dim() == 2 &&
            (is_table ? linear : static_cast<void*>(table)) == nullptr,
        "apply_tensor_plan: '{}' matches '{}', a {}, but {} divides a torch::nn::{}, or a module like it with a parameter `weight`. Name the layers inside it, or leave it out.",
        entry.pattern,
        name,
        module.name(),
        to_string(entry.division),
        is_table ? "Embedding" : "Linear");
    const std::string prefix = name.empty() ? "" : name + ".";
    if (!is_table) {
      // The weight of a tied head is not the one that it has registered.
      const at::Tensor& used = linear != nullptr ? linear->weight : *weight;
      const bool is_row = entry.division == TensorDivision::kRow;
      add(prefix + "weight", entry, is_row ? 1 : 0, used);
      const at::Tensor* bias = parameters.find("bias");
      if (bias != nullptr && bias->defined() &&
          entry.division == TensorDivision::kColumn) {
        add(prefix + "bias", entry, 0, *bias);
      }
      return;
    }
    int64_t padding_id = -1;
    if (table != nullptr) {
      TESSERA_CHECK(
          !table->options.max_norm() && !table->options.scale_grad_by_freq() &&
              !table->options.sparse(),
          "apply_tensor_plan: '{}' is an Embedding with max_norm, scale_grad_by_freq or sparse, which look at all rows. Turn them off, or leave it out of the plan.",
          name);
      padding_id = table->options.padding_idx().value_or(-1);
      tables_.push_back(table);
    }
    add(prefix + "weight",
        entry,
        0,
        table != nullptr ? table->weight : *weight,
        padding_id);
  }

  void add(
      const std::string& name,
      const TensorPlanEntry& entry,
      int64_t dim,
      const at::Tensor& parameter,
      int64_t padding_id = -1) {
    TESSERA_CHECK(
        !sharding::has_page_key(parameter) &&
            sharding::divided_parameter(parameter) == nullptr,
        "apply_tensor_plan: '{}{}",
        name,
        sharding::divided_parameter(parameter) == nullptr
            ? "' is sharded by an engine. Apply the plan before tessera::wrap."
            : "' is already divided. Apply only one plan, and only once.");
    if (const auto found = planned_.find(parameter.unsafeGetTensorImpl());
        found != planned_.end()) {
      const TensorPlanEntry& before = *found->second.entry;
      sharding::DividedParameter& divided = *found->second.divided;
      TESSERA_CHECK(
          before.division != TensorDivision::kRow &&
              entry.division != TensorDivision::kRow &&
              before.unit == entry.unit,
          "apply_tensor_plan: '{}' is the same tensor as '{}', but {} in units of {} cannot be combined with {} in units of {}. An embedding and a head that share a weight are kVocab and kColumn or kColumnGathered.",
          name,
          divided.name(),
          to_string(entry.division),
          entry.unit,
          to_string(before.division),
          before.unit);
      divided.padding_id = std::max(divided.padding_id, padding_id);
      if (entry.division != TensorDivision::kVocab) {
        divided.division = entry.division; // of products
      }
      return;
    }
    const int64_t size = parameter.size(dim);
    const int ranks = tp_->group->size();
    TESSERA_CHECK(
        entry.unit >= 1 && size % entry.unit == 0 && size / entry.unit >= ranks,
        "apply_tensor_plan: dimension {} of '{}', of sizes {}, cannot be divided over {} ranks in units of {}, as '{}' requests. Each rank needs at least one: use a unit that divides the dimension, or a smaller group.",
        dim,
        name,
        parameter.sizes(),
        ranks,
        entry.unit,
        entry.pattern);
    auto divided =
        std::make_shared<sharding::DividedParameter>(sharding::DividedParameter{
            spec_over(*tp_->group, name, parameter, {dim, entry.unit}),
            entry.division,
            tp_,
            padding_id});
    planned_[parameter.unsafeGetTensorImpl()] = {&entry, divided};
    steps_.push_back({parameter, std::move(divided)});
  }

  void apply() const {
    if (tp_->group->size() == 1) {
      return; // untagged weights take LibTorch's own operators
    }
    for (const Step& step : steps_) {
      step.parameter.mutable_grad().reset();
      step.parameter.set_data(
          sharding::local_slice(step.parameter, step.divided->spec));
      sharding::mark_divided(step.parameter, step.divided);
    }
    for (torch::nn::EmbeddingImpl* table : tables_) {
      // LibTorch would check it against the number of this rank's rows.
      table->options.padding_idx(std::nullopt);
    }
  }

 private:
  std::shared_ptr<const TensorParallel> tp_;
  std::unordered_map<const c10::TensorImpl*, Planned> planned_;
  std::vector<Step> steps_;
  std::vector<torch::nn::EmbeddingImpl*> tables_;
};

/// The names of a plan's entries. Those without a `*`, of which a mixture of
/// experts has tens of thousands, are looked up and not compared with each
/// module's.
class PlanNames {
 public:
  explicit PlanNames(const TensorPlan& plan) {
    for (size_t i = 0; i < plan.size(); ++i) {
      const std::string& name = plan[i].pattern;
      if (name.find('*') == std::string::npos) {
        exact_.try_emplace(name, Exact{i});
      } else {
        globs_.add_glob(name);
        glob_entries_.push_back(i);
      }
    }
  }

  /// The first entry that matches. All that match count as used.
  std::optional<size_t> first_match(const std::string& name) {
    std::optional<size_t> first;
    if (const auto glob = globs_.first_match(name)) {
      first = glob_entries_[*glob];
    }
    if (const auto found = exact_.find(name); found != exact_.end()) {
      found->second.used = true;
      first =
          std::min(first.value_or(found->second.entry), found->second.entry);
    }
    return first;
  }

  /// @throws tessera::Error if an entry has matched none of the module's names.
  void check_all_used(const torch::nn::Module& module) const {
    globs_.check_all_used();
    for (const auto& [name, exact] : exact_) {
      if (!exact.used) {
        runtime::NamePatterns missing(kApply);
        missing.add_glob(name);
        for (const auto& item : module.named_modules()) {
          missing.first_match(item.key());
        }
        missing.check_all_used();
      }
    }
  }

 private:
  static constexpr const char* kApply = "apply_tensor_plan";

  struct Exact {
    size_t entry = 0; ///< the first of the name
    bool used = false;
  };

  runtime::NamePatterns globs_{kApply};
  std::vector<size_t> glob_entries_;
  std::unordered_map<std::string, Exact> exact_;
};

} // namespace

const char* to_string(TensorDivision division) {
  switch (division) {
    case TensorDivision::kColumn:
      return "kColumn";
    case TensorDivision::kColumnGathered:
      return "kColumnGathered";
    case TensorDivision::kRow:
      return "kRow";
    case TensorDivision::kVocab:
      return "kVocab";
  }
  TESSERA_FAIL("unknown TensorDivision.");
}

void apply_tensor_plan(
    torch::nn::Module& module,
    const TensorPlan& plan,
    const TensorParallel& tp) {
  TESSERA_CHECK(
      tp.group != nullptr,
      "apply_tensor_plan: there is no group: set TensorParallel::group; for a single rank, use a Communicator of one.");
  Planner planner(tp);
  PlanNames names(plan);
  for (const auto& item : module.named_modules()) {
    if (const auto first = names.first_match(item.key())) {
      planner.add(item.key(), *item.value(), plan[*first]);
    }
  }
  names.check_all_used(module);
  const c10::NoGradGuard no_grad;
  planner.apply();
}

void divide_weight(
    const at::Tensor& weight,
    const std::string& name,
    TensorDivision division,
    int64_t unit,
    const TensorParallel& tp) {
  const TensorPlanEntry entry{name, division, unit};
  Planner planner(tp);
  planner.add(name, entry, division == TensorDivision::kRow ? 1 : 0, weight);
  const c10::NoGradGuard no_grad;
  planner.apply();
}

} // namespace tessera

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/state_loading.h"

#include "tessera/engine/checkpoint/checkpoint_reader.h"
#include "tessera/engine/checkpoint/subject_tensors.h"
#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/state_names.h"
#include "tessera/runtime/comm/gather_texts.h"

#include <c10/core/GradMode.h>
#include <nlohmann/json.hpp>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

namespace {

/// Finds and checks what one rank needs before anything is changed.
class StateLoading {
 public:
  StateLoading(
      const CheckpointSubject& subject,
      const ModelTensors& model,
      const std::filesystem::path& checkpoint,
      const LoadWeightsReport& report)
      : subject_(subject),
        model_(model),
        reader_(find_checkpoint(checkpoint)),
        tensors_(tensors_of(subject, model)) {
    for (const LoadedWeight& weight : report.loaded) {
      sources_.emplace(weight.name, weight.source);
    }
    for (const OptimizedParameter& parameter :
         std::as_const(subject.optimizer).parameters()) {
      const std::string& name = model.find(parameter.name())->name();
      if (sources_.count(name) > 0) {
        trained_.insert(name);
        if (!tensors_.opaques.empty() || !has_same_memory(parameter, name) ||
            !continues(parameter, name)) {
          without_.insert(name);
        }
      }
    }
    for (const StateSlice& slice : tensors_.slices) {
      if (is_state(slice) && !reader_.has(source(slice), slice.state)) {
        without_.insert(slice.parameter);
      }
    }
    for (const SubjectFullTensor& full : tensors_.full_tensors) {
      if (trained_.count(full.parameter) > 0 && !find_full(full)) {
        without_.insert(full.parameter);
      }
    }
  }

  const std::set<std::string>& trained() const {
    return trained_;
  }
  const std::set<std::string>& without() const {
    return without_;
  }

  /// @param without of all ranks.
  void check(std::set<std::string> without) {
    without_ = std::move(without);
    for (const StateSlice& slice : tensors_.slices) {
      if (is_loaded(slice)) {
        reader_.check_elements(source(slice), slice.state, slice.part);
      }
    }
    for (const SubjectFullTensor& full : tensors_.full_tensors) {
      if (is_loaded(full.parameter)) {
        full_tensors_.emplace_back(full.values, *find_full(full));
      }
    }
  }

  void apply() {
    SliceReader local(tensors_);
    bool has_changed = false;
    for (size_t i = 0; i < tensors_.slices.size(); ++i) {
      const StateSlice& slice = tensors_.slices[i];
      if (is_loaded(slice)) {
        reader_.read_elements(
            source(slice), slice.state, slice.part, local.values(slice));
        has_changed = true;
      }
      if (i + 1 == tensors_.slices.size() ||
          tensors_.slices[i + 1].tensor != slice.tensor) {
        if (has_changed) {
          local.store();
        }
        has_changed = false;
      }
    }
    for (const auto& [values, loaded] : full_tensors_) {
      values.copy_(loaded);
    }
    for (OptimizedParameter& parameter : subject_.optimizer.parameters()) {
      const std::string& name = model_.find(parameter.name())->name();
      if (is_loaded(name)) {
        parameter.steps =
            reader_.manifest().parameters.at(sources_.at(name)).steps;
      }
    }
  }

 private:
  bool is_state(const StateSlice& slice) const {
    return slice.state != kMasterState && slice.state != kAverageState &&
           trained_.count(slice.parameter) > 0;
  }
  bool is_loaded(const std::string& parameter) const {
    return trained_.count(parameter) > 0 && without_.count(parameter) == 0;
  }
  bool is_loaded(const StateSlice& slice) const {
    return is_state(slice) && is_loaded(slice.parameter);
  }
  const std::string& source(const StateSlice& slice) const {
    return sources_.at(slice.parameter);
  }

  /// Whether the parameter's elements lie in the order in which they lay when
  /// its state was saved.
  bool has_same_memory(
      const OptimizedParameter& parameter,
      const std::string& name) const {
    const auto& all = reader_.manifest().parameters;
    const auto saved = all.find(sources_.at(name));
    const at::Tensor& tensor = parameter.paged->record.tensor;
    return saved != all.end() &&
           saved->second.sizes == model_.find(name)->spec.sizes &&
           saved->second.strides ==
               (model_.spec_of(tensor).is_divided()
                    ? sharding::row_major_strides(saved->second.sizes)
                    : tensor.strides().vec());
  }

  /// Whether its optimizer takes the state of the one that had it.
  bool continues(const OptimizedParameter& parameter, const std::string& name)
      const {
    const auto& all = reader_.manifest().parameters;
    const auto saved = all.find(sources_.at(name));
    return saved == all.end() || saved->second.optimizer.empty() ||
           parameter.settings.rule.optimizer().continues(
               saved->second.optimizer);
  }

  std::optional<at::Tensor> find_full(const SubjectFullTensor& full) {
    const std::string name =
        "whole/" + full.state + "/" + sources_.at(full.parameter);
    const auto rank = reader_.rank_with(0, name);
    if (!rank) {
      return std::nullopt;
    }
    at::Tensor loaded = reader_.tensor(*rank, name);
    return loaded.sizes() == full.values.sizes()
               ? std::optional(std::move(loaded))
               : std::nullopt;
  }

  const CheckpointSubject& subject_;
  const ModelTensors& model_;
  CheckpointReader reader_;
  SubjectTensors tensors_;
  std::map<std::string, std::string> sources_; ///< of loaded tensors
  std::set<std::string> trained_; ///< the trained ones among them
  std::set<std::string> without_;
  std::vector<std::pair<at::Tensor, at::Tensor>> full_tensors_;
};

} // namespace

void load_optimizer_state(
    const CheckpointSubject& subject,
    const std::filesystem::path& checkpoint,
    LoadWeightsReport& report) {
  using nlohmann::json;
  const c10::NoGradGuard no_grad;
  ModelTensors model(subject.pager, subject.files, subject.module);
  std::optional<StateLoading> loading;
  model.on_all_ranks("load_weights: reading the optimizer state", [&] {
    loading.emplace(subject, model, checkpoint, report);
  });
  // Every rank knows of the parameters of which it has elements.
  std::set<std::string> trained;
  std::set<std::string> without;
  for (const std::string& text : runtime::gather_texts(
           subject.files,
           json{loading->trained(), loading->without()}.dump(),
           "which optimizer state the ranks find",
           subject.pager.ranks().watch_failures())) {
    const json found = json::parse(text);
    trained.merge(found.at(0).get<std::set<std::string>>());
    without.merge(found.at(1).get<std::set<std::string>>());
  }
  model.on_all_ranks(
      "load_weights: comparing checksums", [&] { loading->check(without); });
  model.on_all_ranks("load_weights", [&] { loading->apply(); });
  for (const std::string& name : trained) {
    (without.count(name) > 0 ? report.without_state : report.with_state)
        .push_back(name);
  }
}

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/model_loading.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/state_names.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/sharding/tensors/tensor_blocks.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::engine {

namespace {

constexpr std::string_view kBufferPrefix = "buffer/";

/// @param opaque its name in the file of the rank.
void check_same_layout(
    const CheckpointSubject& subject,
    const CheckpointReader& reader,
    const std::string& opaque) {
  const CheckpointManifest& saved = reader.manifest();
  const DeviceMesh& mesh = subject.pager.ranks().model();
  const int tensor_ranks = mesh.size(kTensorAxis);
  const int stages = mesh.size(sharding::kPipelineAxis);
  TESSERA_CHECK(
      reader.world_size() == subject.files.size() &&
          saved.tensor_ranks == tensor_ranks && saved.stages == stages,
      "load: the state of a user-defined optimizer was saved by {} ranks (tensor {}, pipeline {}) and cannot be redistributed to {} (tensor {}, pipeline {}); load with the same layout.",
      reader.world_size(),
      saved.tensor_ranks,
      saved.stages,
      subject.files.size(),
      tensor_ranks,
      stages);
  TESSERA_CHECK(
      reader.rank_with(mesh.rank(), opaque) == mesh.rank(),
      "load: the checkpoint has no '{}' for rank {}: the state of a user-defined optimizer was saved with other shards or experts, or by a version in which divided experts had an engine of their own. Load with the layout that saved it; or write the weights with the version and layout that saved it (save_weights), load those, and begin with a new optimizer.",
      opaque,
      mesh.rank());
}

/// Whether this rank of the same layout has saved it.
bool has_local(
    const CheckpointSubject& subject,
    const CheckpointReader& reader,
    const std::string& opaque) {
  const CheckpointManifest& saved = reader.manifest();
  const DeviceMesh& mesh = subject.pager.ranks().model();
  return reader.world_size() == subject.files.size() &&
         saved.tensor_ranks == mesh.size(kTensorAxis) &&
         saved.stages == mesh.size(sharding::kPipelineAxis) &&
         reader.rank_with(subject.files.rank(), opaque) == subject.files.rank();
}

/// The rank of the checkpoint whose buffers this one loads: its own on the
/// layout that saved them, else the first with this part of the model.
int saved_rank_of_buffers(
    const CheckpointSubject& subject,
    const CheckpointReader& reader) {
  const CheckpointManifest& saved = reader.manifest();
  const DeviceMesh& mesh = subject.pager.ranks().model();
  const int stages = mesh.size(sharding::kPipelineAxis);
  const bool has_same_tensor_ranks =
      saved.tensor_ranks == mesh.size(kTensorAxis);
  const bool has_same_stages = saved.stages == stages;
  if (has_same_tensor_ranks && has_same_stages &&
      reader.world_size() == subject.files.size()) {
    return mesh.rank();
  }
  const int first =
      has_same_stages && stages > 1
          ? mesh.index(sharding::kPipelineAxis) * (reader.world_size() / stages)
          : 0;
  return first + (has_same_tensor_ranks && mesh.size(kTensorAxis) > 1
                      ? mesh.index(kTensorAxis)
                      : 0);
}

at::Tensor same_shape(
    at::Tensor loaded,
    const at::Tensor& local,
    const std::string& name) {
  TESSERA_CHECK(
      loaded.sizes() == local.sizes(),
      "load: '{}' has shape {}; in the checkpoint it is {}. Build the model as it was saved.",
      name,
      local.sizes(),
      loaded.sizes());
  return loaded;
}

/// Checks that what a checkpoint has of a trained parameter is what its
/// optimizer keeps. What that keeps besides is missed elsewhere.
void check_same_states(
    const CheckpointReader& reader,
    const std::string& parameter,
    const std::string& saved_name,
    const std::set<std::string>& states) {
  for (const std::string& saved : reader.states_of(saved_name)) {
    TESSERA_CHECK(
        states.contains(saved) || saved == kMasterState ||
            saved == kAverageState,
        "{}: has '{}' of parameter '{}', which its optimizer does not keep; it was saved with a different optimizer for this parameter. Load with the same optimizer, or only the weights (load_weights).",
        reader.path().string(),
        saved,
        parameter);
  }
}

} // namespace

ModelLoading::ModelLoading(
    const CheckpointSubject& subject,
    const ModelTensors& model,
    const SubjectTensors& tensors,
    CheckpointReader& reader,
    const std::optional<int>& saved_rank)
    : subject_(subject), model_(model), tensors_(tensors), reader_(reader) {
  check_parameters();
  for (const OptimizedParameter& parameter :
       std::as_const(subject_.optimizer).parameters()) {
    check_optimizer(parameter);
  }
  for (const StateSlice& slice : tensors_.slices) {
    if (!is_saved(slice)) {
      continue;
    }
    if (begins_anew(slice.parameter, slice.state)) {
      begun_anew_.insert(slice.parameter);
    } else {
      reader_.check_elements(
          saved_name(slice.parameter), slice.state, slice.part);
    }
  }
  std::map<std::string, std::set<std::string>> states;
  for (const StateSlice& slice : tensors_.slices) {
    states[slice.parameter].insert(slice.state);
  }
  for (const OptimizedParameter& parameter :
       std::as_const(subject_.optimizer).parameters()) {
    const std::string& name = model_.find(parameter.name())->name();
    // Other ranks have the rest.
    if (const auto local = states.find(name);
        local != states.end() && has_steps(name)) {
      check_same_states(reader_, name, saved_name(name), local->second);
    }
  }
  for (const SubjectFullTensor& full : tensors_.full_tensors) {
    if (begins_anew(full.parameter, full.state)) {
      begun_anew_.insert(full.parameter);
      full_tensors_.push_back(at::zeros_like(full.values));
      continue;
    }
    full_tensors_.push_back(same_shape(
        any_tensor(0, "whole/" + full.state + "/" + saved_name(full.parameter)),
        full.values,
        full.parameter));
  }
  for (const SubjectOpaque& opaque : tensors_.opaques) {
    const std::string name = "opaque/" + opaque.name;
    if (opaque.reset && !has_local(subject_, reader_, name)) {
      opaques_.emplace_back();
      continue;
    }
    check_same_layout(subject_, reader_, name);
    opaques_.push_back(reader_.tensor(subject_.files.rank(), name));
  }
  check_buffers();
  const int buffer_rank = saved_rank_of_buffers(subject_, reader_);
  for (const auto& [name, values] : tensors_.buffers) {
    buffers_.push_back(
        same_shape(any_tensor(buffer_rank, "buffer/" + name), values, name));
  }
}

void ModelLoading::apply() {
  subject_.optimizer.finish_updates();
  subject_.pager.wait_for_gather_lane();
  log_begun_anew();
  log_other_optimizers();
  log_dropped_groups();
  load_opaques(); // first: they may refuse what they are given
  load_slices();
  for (size_t i = 0; i < full_tensors_.size(); ++i) {
    tensors_.full_tensors[i].values.copy_(full_tensors_[i]);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    tensors_.buffers[i].second.copy_(buffers_[i]);
  }
  const CheckpointManifest& manifest = reader_.manifest();
  for (OptimizedParameter& parameter : subject_.optimizer.parameters()) {
    const std::string& name = model_.find(parameter.name())->name();
    parameter.steps = manifest.parameters.at(saved_name(name)).steps;
  }
  subject_.optimizer.set_steps(manifest.step);
  if (WeightAverages* averages = subject_.optimizer.averages()) {
    averages->set_steps(saved_averages());
  } else if (saved_averages() > 0 && subject_.files.rank() == 0) {
    log_warning(
        "load: the checkpoint has averages of the weights, which are dropped: this engine keeps none. To go on with them, set optimizer.ema_decay as in the run that saved them.");
  }
  subject_.optimizer.set_learning_rate(manifest.engine.at("learning_rate"));
  subject_.pager.invalidate();
}

/// Of an optimizer of torch, in Python, where the engine has options now.
void ModelLoading::log_dropped_groups() const {
  const char* const groups = "optimizer groups";
  const CheckpointManifest& manifest = reader_.manifest();
  const auto is_passed = [&](const Checkpointable* state) {
    return state->name() == groups;
  };
  if (subject_.files.rank() == 0 && !manifest.ranks.empty() &&
      manifest.ranks.front().states.contains(groups) &&
      std::none_of(subject_.states.begin(), subject_.states.end(), is_passed)) {
    log_warning(
        "load: the checkpoint has parameter groups with rates and options of their own, which are dropped: all parameters go on with the learning rate {} and the options of this engine. To keep the groups, give wrap() an optimizer of torch as in the run that saved them.",
        manifest.engine.at("learning_rate").get<double>());
  }
}

/// A tensor of rank `r`, or of another rank if that one does not have it.
at::Tensor ModelLoading::any_tensor(int r, const std::string& name) {
  return reader_.tensor(reader_.rank_with(r, name).value_or(r), name);
}

/// The steps of which the checkpoint has averages of the weights; 0: it has
/// none.
int64_t ModelLoading::saved_averages() const {
  return reader_.manifest().engine.value("ema_steps", int64_t{0});
}

/// Averages begin anew if they were not kept.
bool ModelLoading::is_saved(const StateSlice& slice) const {
  return slice.state != kAverageState || saved_averages() > 0;
}

bool ModelLoading::has_steps(const std::string& parameter) const {
  return reader_.manifest().parameters.at(saved_name(parameter)).steps > 0;
}

/// A parameter that no step has updated has no state to go on with: it was
/// frozen, or is of another optimizer. Its average is its value.
bool ModelLoading::begins_anew(
    const std::string& parameter,
    const std::string& state) const {
  if (state == kMasterState || has_steps(parameter)) {
    return false;
  }
  const std::string& name = saved_name(parameter);
  return (state != kAverageState && of_other_optimizers_.contains(parameter)) ||
         (!reader_.has(name, state) &&
          !reader_.rank_with(0, "whole/" + state + "/" + name));
}

void ModelLoading::log_begun_anew() const {
  if (!begun_anew_.empty() && subject_.files.rank() == 0) {
    log_warning(
        "load: the optimizer state of '{}'{} begins at zero: no step had updated it when the checkpoint was saved (was it frozen?).",
        *begun_anew_.begin(),
        begun_anew_.size() == 1
            ? std::string()
            : formatted(" and of {} others", begun_anew_.size() - 1));
  }
}

void ModelLoading::check_optimizer(const OptimizedParameter& parameter) {
  const std::string& name = model_.find(parameter.name())->name();
  const std::string& saved =
      reader_.manifest().parameters.at(saved_name(name)).optimizer;
  const Optimizer& local = parameter.settings.rule.optimizer();
  if (saved.empty() || saved == local.saved_name()) {
    return;
  }
  const bool continues = local.continues(saved);
  // Nor does it matter that others cannot go on with what no step has changed.
  if (!continues && !has_steps(name) &&
      std::all_of(
          tensors_.opaques.begin(),
          tensors_.opaques.end(),
          [](const SubjectOpaque& opaque) {
            return opaque.reset != nullptr;
          })) {
    of_other_optimizers_.insert(name);
    return;
  }
  TESSERA_CHECK(
      continues,
      "{}: the optimizer of parameter '{}' was '{}', and is '{}' now, which cannot continue with the other's state. Load with the same optimizer ('optimizer.type'), or load only the weights and begin with new state: Engine::load_weights(), in a configuration 'model.start_from'.",
      reader_.path().string(),
      parameter.name(),
      saved,
      local.saved_name());
  other_optimizers_.emplace(saved, local.saved_name());
}

void ModelLoading::log_other_optimizers() const {
  if (subject_.files.rank() != 0) {
    return;
  }
  for (const auto& [saved, local] : other_optimizers_) {
    log_warning(
        "load: the checkpoint was saved with the optimizer '{}'; '{}' continues with its state, which means the same, and has its own weight decay.",
        saved,
        local);
  }
}

/// The name that a parameter of the model has in the checkpoint.
const std::string& ModelLoading::saved_name(const std::string& name) const {
  return saved_names_.at(name);
}

void ModelLoading::check_parameters() {
  const SavedParameters& saved = reader_.manifest().parameters;
  std::map<std::string, std::string> saved_by;
  for (const auto& [name, parameter] : saved) {
    saved_by.emplace(name, name);
  }
  for (const auto& [name, parameter] : saved) {
    for (const std::string& alias : parameter.aliases) {
      saved_by.emplace(alias, name);
    }
  }
  for (const auto& page : subject_.pager.pages()) {
    for (const sharding::PagedParameter& parameter : page->parameters()) {
      check_parameter(parameter.record, saved_by);
    }
  }
}

/// One that the module fills later on would be lost without a word.
void ModelLoading::check_buffers() const {
  for (const SavedRank& rank : reader_.manifest().ranks) {
    for (const SavedTensor& tensor : rank.tensors) {
      const std::string_view saved = tensor.name;
      if (!saved.starts_with(kBufferPrefix)) {
        continue;
      }
      const std::string name(saved.substr(kBufferPrefix.size()));
      TESSERA_CHECK(
          model_.find(name) != nullptr,
          "load: the checkpoint has a buffer '{}', which the module has not, or not yet (it is undefined, or None). Register it with its shape before wrap(), or load only the weights (load_weights).",
          name);
    }
  }
}

void ModelLoading::check_parameter(
    const sharding::ParameterRecord& record,
    const std::map<std::string, std::string>& saved_by) {
  const ModelTensor& full = *model_.find(record.name());
  const auto name = std::find_if(
      full.spec.names.begin(),
      full.spec.names.end(),
      [&](const std::string& one) { return saved_by.count(one) > 0; });
  if (name == full.spec.names.end()) {
    std::vector<std::string> names;
    for (const auto& [known, parameter] : saved_by) {
      names.push_back(known);
    }
    TESSERA_FAIL(
        "load: the checkpoint has no parameter '{}'; the nearest is '{}'. Build the model as it was saved.",
        record.name(),
        runtime::nearest_name(record.name(), names));
  }
  const std::string& key = saved_by.at(*name);
  saved_names_[full.name()] = key;
  const SavedParameter& saved = reader_.manifest().parameters.at(key);
  const std::vector<int64_t> strides =
      model_.spec_of(record.tensor).is_divided()
          ? sharding::row_major_strides(full.spec.sizes)
          : record.tensor.strides().vec();
  TESSERA_CHECK(
      full.spec.sizes == saved.sizes && strides == saved.strides,
      "load: parameter '{}' has shape {} and strides {}; in the checkpoint they are {} and {}. Build the model as it was saved.",
      record.name(),
      c10::IntArrayRef(full.spec.sizes),
      c10::IntArrayRef(strides),
      c10::IntArrayRef(saved.sizes),
      c10::IntArrayRef(saved.strides));
}

void ModelLoading::load_opaques() {
  for (size_t i = 0; i < opaques_.size(); ++i) {
    if (opaques_[i].defined()) {
      tensors_.opaques[i].load(opaques_[i]);
      continue;
    }
    tensors_.opaques[i].reset();
    log_warning(
        "the checkpoint has no '{}' for this rank, of another number of ranks or another optimizer: it begins at zero.",
        tensors_.opaques[i].name);
  }
}

void ModelLoading::load_slices() {
  SliceReader local(tensors_);
  for (size_t i = 0; i < tensors_.slices.size(); ++i) {
    const StateSlice& slice = tensors_.slices[i];
    if (!is_saved(slice)) {
      continue;
    }
    if (!begins_anew(slice.parameter, slice.state)) {
      reader_.read_elements(
          saved_name(slice.parameter),
          slice.state,
          slice.part,
          local.values(slice));
    } else if (slice.state == kAverageState) {
      reader_.read_elements(
          saved_name(slice.parameter),
          kMasterState,
          slice.part,
          local.values(slice));
    } else {
      local.values(slice).zero_();
    }
    if (i + 1 == tensors_.slices.size() ||
        tensors_.slices[i + 1].tensor != slice.tensor) {
      local.store();
    }
  }
}

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint.h"

#include "tessera/engine/checkpoint/checkpoint_reader.h"
#include "tessera/engine/checkpoint/rng_state.h"
#include "tessera/engine/checkpoint/subject_tensors.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// A checkpoint that has been looked through for everything that one rank
/// needs, so that nothing can be missing when the engine is being changed.
class Loading {
 public:
  Loading(
      const CheckpointSubject& subject,
      const WholeModel& model,
      const fs::path& path)
      : subject_(subject),
        model_(model),
        reader_(find_checkpoint(path)),
        tensors_(tensors_of(subject, model)) {
    check_parameters();
    for (const SubjectPiece& piece : tensors_.pieces) {
      reader_.check_elements(
          saved_name(piece.parameter), piece.state, piece.stretch);
    }
    for (const SubjectWhole& whole : tensors_.wholes) {
      wholes_.push_back(same_shape(
          any_tensor(
              0, "whole/" + whole.state + "/" + saved_name(whole.parameter)),
          whole.values,
          whole.parameter));
    }
    for (const SubjectOpaque& opaque : tensors_.opaques) {
      check_same_layout();
      opaques_.push_back(
          reader_.tensor(model.job().rank(), "opaque/" + opaque.name));
    }
    for (const auto& [name, values] : tensors_.buffers) {
      buffers_.push_back(same_shape(
          any_tensor(saved_rank().value_or(0), "buffer/" + name),
          values,
          name));
    }
    states_.emplace_back(&rng_, find_state(rng_));
    for (Checkpointable* state : subject.states) {
      states_.emplace_back(state, find_state(*state));
    }
  }

  int64_t step() const {
    return reader_.manifest().step;
  }

  void apply() {
    load_pieces();
    for (size_t i = 0; i < wholes_.size(); ++i) {
      tensors_.wholes[i].values.copy_(wholes_[i]);
    }
    for (size_t i = 0; i < opaques_.size(); ++i) {
      tensors_.opaques[i].load(opaques_[i]);
    }
    for (size_t i = 0; i < buffers_.size(); ++i) {
      tensors_.buffers[i].second.copy_(buffers_[i]);
    }
    apply_counters();
    subject_.pager.invalidate();
    // The generators last: what came before may have used them.
    for (auto state = states_.rbegin(); state != states_.rend(); ++state) {
      if (state->second) {
        state->first->load_state(*state->second);
      }
    }
  }

 private:
  /// The rank of the checkpoint whose state this one takes over, if there is
  /// one (see Checkpointable::is_per_rank()). Ranks of a tensor-parallel group
  /// draw the same random numbers: where it is of another size, all of them
  /// take over the same rank's.
  std::optional<int> saved_rank() const {
    const JobRanks& job = model_.job();
    const int saved = reader_.manifest().tensor_ranks;
    const int rank = job.rank() / job.tensor_size() * saved +
                     (saved == job.tensor_size() ? job.tensor_rank() : 0);
    return rank < reader_.world_size() ? std::optional(rank) : std::nullopt;
  }

  /// A tensor of rank `r`, or of another one where that has none.
  at::Tensor any_tensor(int r, const std::string& name) {
    return reader_.tensor(reader_.rank_with(r, name).value_or(r), name);
  }

  void check_same_layout() const {
    const JobRanks& job = model_.job();
    const CheckpointManifest& saved = reader_.manifest();
    TESSERA_CHECK(
        reader_.world_size() == job.size() &&
            saved.tensor_ranks == job.tensor_size() &&
            saved.stages == job.stages(),
        "load: the state of a user's optimizer was saved by ",
        reader_.world_size(),
        " ranks (tensor ",
        saved.tensor_ranks,
        ", pipeline ",
        saved.stages,
        ") and cannot be divided over ",
        job.size(),
        " (tensor ",
        job.tensor_size(),
        ", pipeline ",
        job.stages(),
        "); load with as many ranks.");
  }

  /// The name that a parameter of the model has in the checkpoint.
  const std::string& saved_name(const std::string& name) const {
    return saved_names_.at(name);
  }

  void check_parameters() {
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
    for (const auto& group : subject_.pager.groups()) {
      for (const PagedParameter& parameter : group->parameters()) {
        check_parameter(parameter.record, saved_by);
      }
    }
    for (const auto& [name, parameter] : saved) {
      const auto is_known = [&](const std::string& one) {
        return model_.find(one) != nullptr;
      };
      TESSERA_CHECK(
          is_known(name) ||
              std::any_of(
                  parameter.aliases.begin(), parameter.aliases.end(), is_known),
          "load: the checkpoint has a parameter '",
          name,
          "' that the model has not; the nearest is '",
          nearest_name(name, model_.parameter_names()),
          "'. Build the model as it was saved.");
    }
  }

  void check_parameter(
      const ParameterRecord& record,
      const std::map<std::string, std::string>& saved_by) {
    const WholeTensor& whole = *model_.find(record.name());
    const auto name = std::find_if(
        whole.names.begin(), whole.names.end(), [&](const std::string& one) {
          return saved_by.count(one) > 0;
        });
    if (name == whole.names.end()) {
      std::vector<std::string> names;
      for (const auto& [known, parameter] : saved_by) {
        names.push_back(known);
      }
      TESSERA_FAIL(
          "load: the checkpoint has no parameter '",
          record.name(),
          "'; the nearest is '",
          nearest_name(record.name(), names),
          "'. Build the model as it was saved.");
    }
    const std::string& key = saved_by.at(*name);
    saved_names_[whole.name()] = key;
    const SavedParameter& saved = reader_.manifest().parameters.at(key);
    const std::vector<int64_t> strides = model_.job().part_of(record.tensor)
                                             ? row_major_strides(whole.sizes)
                                             : record.tensor.strides().vec();
    TESSERA_CHECK(
        whole.sizes == saved.sizes && strides == saved.strides,
        "load: parameter '",
        record.name(),
        "' has shape ",
        c10::IntArrayRef(whole.sizes),
        " and strides ",
        c10::IntArrayRef(strides),
        "; in the checkpoint they are ",
        c10::IntArrayRef(saved.sizes),
        " and ",
        c10::IntArrayRef(saved.strides),
        ". Build the model as it was saved.");
  }

  static at::Tensor same_shape(
      at::Tensor loaded,
      const at::Tensor& own,
      const std::string& name) {
    TESSERA_CHECK(
        loaded.sizes() == own.sizes(),
        "load: '",
        name,
        "' has shape ",
        own.sizes(),
        "; in the checkpoint it is ",
        loaded.sizes(),
        ". Build the model as it was saved.");
    return loaded;
  }

  std::optional<CheckpointState> find_state(const Checkpointable& state) {
    const auto rank = state.is_per_rank() ? saved_rank() : std::optional(0);
    if (!rank) {
      return std::nullopt;
    }
    const auto& states =
        reader_.manifest().ranks[static_cast<size_t>(*rank)].states;
    const auto found = states.find(state.name());
    TESSERA_CHECK(
        found != states.end(),
        "load: the checkpoint has no state '",
        state.name(),
        "'; it was not given to save().");
    return CheckpointState{
        found->second, reader_.tensors(*rank, "state/" + state.name() + "/")};
  }

  void load_pieces() {
    PieceReader own(tensors_);
    for (size_t i = 0; i < tensors_.pieces.size(); ++i) {
      const SubjectPiece& piece = tensors_.pieces[i];
      reader_.read_elements(
          saved_name(piece.parameter),
          piece.state,
          piece.stretch,
          own.values(piece));
      if (i + 1 == tensors_.pieces.size() ||
          tensors_.pieces[i + 1].tensor != piece.tensor) {
        own.store();
      }
    }
  }

  void apply_counters() {
    const CheckpointManifest& manifest = reader_.manifest();
    for (OptimizedParameter& parameter : subject_.optimizer.parameters()) {
      const std::string& name = model_.find(parameter.name())->name();
      parameter.steps = manifest.parameters.at(saved_name(name)).steps;
    }
    subject_.optimizer.set_steps(manifest.step);
    subject_.optimizer.set_learning_rate(manifest.engine.at("learning_rate"));
    const auto& scale = manifest.engine.at("loss_scale");
    subject_.scaler.restore(
        {scale.at("scale"), scale.at("good_steps"), scale.at("skipped_steps")});
  }

  const CheckpointSubject& subject_;
  const WholeModel& model_;
  CheckpointReader reader_;
  std::map<std::string, std::string> saved_names_;
  SubjectTensors tensors_;
  RngState rng_;
  std::vector<at::Tensor> wholes_;
  std::vector<at::Tensor> opaques_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::pair<Checkpointable*, std::optional<CheckpointState>>>
      states_;
};

void check_same_step(JobRanks& job, int64_t step) {
  const at::Tensor ends = at::tensor({step, -step}, at::kLong);
  job.max(ends);
  const auto* values = ends.const_data_ptr<int64_t>();
  TESSERA_CHECK(
      values[0] == -values[1],
      "load: this rank finds the checkpoint of step ",
      step,
      ", others those of ",
      -values[1],
      " to ",
      values[0],
      ". All ranks must see the same folder.");
}

} // namespace

int64_t load_checkpoint(
    const CheckpointSubject& subject,
    const fs::path& path) {
  const c10::NoGradGuard no_grad;
  WholeModel model(
      JobRanks(subject.pager, subject.groups, subject.module),
      subject.pager,
      subject.module);
  JobRanks& job = model.job();
  std::optional<Loading> loading;
  job.on_all_ranks("load: reading the checkpoint", [&] {
    loading.emplace(subject, model, path);
  });
  check_same_step(job, loading->step());
  // Gradients of before have no meaning after.
  subject.pager.settle_gradients();
  job.on_all_ranks("load", [&] { loading->apply(); });
  return loading->step();
}

} // namespace tessera

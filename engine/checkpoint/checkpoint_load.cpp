// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint.h"

#include "tessera/engine/checkpoint/checkpoint_reader.h"
#include "tessera/engine/checkpoint/rng_state.h"
#include "tessera/engine/checkpoint/subject_tensors.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <utility>

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// A checkpoint that has been looked through for everything that one rank
/// needs, so that nothing can be missing when the engine is being changed.
class Loading {
 public:
  Loading(const CheckpointSubject& subject, const fs::path& path)
      : subject_(subject),
        reader_(find_checkpoint(path)),
        tensors_(tensors_of(subject)) {
    check_parameters();
    for (const SubjectPiece& piece : tensors_.pieces) {
      reader_.check_elements(
          piece.parameter, piece.state, piece.offset, piece.numel);
    }
    for (const SubjectWhole& whole : tensors_.wholes) {
      wholes_.push_back(same_shape(
          reader_.tensor(0, "whole/" + whole.state + "/" + whole.parameter),
          whole.values,
          whole.parameter));
    }
    for (const SubjectOpaque& opaque : tensors_.opaques) {
      TESSERA_CHECK(
          reader_.world_size() == subject.pager.world_size(),
          "load: the state of a user's optimizer was saved by ",
          reader_.world_size(),
          " ranks and cannot be divided over ",
          subject.pager.world_size(),
          "; load with as many ranks.");
      opaques_.push_back(
          reader_.tensor(subject.pager.rank(), "opaque/" + opaque.name));
    }
    for (const auto& [name, values] : tensors_.buffers) {
      buffers_.push_back(same_shape(
          reader_.tensor(own_rank().value_or(0), "buffer/" + name),
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
  /// This rank in the checkpoint, if it had so many.
  std::optional<int> own_rank() const {
    const int rank = subject_.pager.rank();
    return rank < reader_.world_size() ? std::optional(rank) : std::nullopt;
  }

  void check_parameters() const {
    const auto& saved = reader_.manifest().parameters;
    std::vector<std::string> names;
    for (const auto& group : subject_.pager.groups()) {
      for (const PagedParameter& parameter : group->parameters()) {
        names.push_back(parameter.record.name());
        check_parameter(parameter.record);
      }
    }
    for (const auto& [name, parameter] : saved) {
      TESSERA_CHECK(
          std::find(names.begin(), names.end(), name) != names.end(),
          "load: the checkpoint has a parameter '",
          name,
          "' that the model has not; the nearest is '",
          nearest_name(name, names),
          "'. Build the model as it was saved.");
    }
  }

  void check_parameter(const ParameterRecord& record) const {
    const auto& saved = reader_.manifest().parameters;
    const auto found = saved.find(record.name());
    if (found == saved.end()) {
      std::vector<std::string> names;
      for (const auto& [name, parameter] : saved) {
        names.push_back(name);
      }
      TESSERA_FAIL(
          "load: the checkpoint has no parameter '",
          record.name(),
          "'; the nearest is '",
          nearest_name(record.name(), names),
          "'. Build the model as it was saved.");
    }
    TESSERA_CHECK(
        record.tensor.sizes() == c10::IntArrayRef(found->second.sizes) &&
            record.tensor.strides() == c10::IntArrayRef(found->second.strides),
        "load: parameter '",
        record.name(),
        "' has shape ",
        record.tensor.sizes(),
        " and strides ",
        record.tensor.strides(),
        "; in the checkpoint they are ",
        c10::IntArrayRef(found->second.sizes),
        " and ",
        c10::IntArrayRef(found->second.strides),
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
    const auto rank = state.is_per_rank() ? own_rank() : std::optional(0);
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
          piece.parameter, piece.state, piece.offset, own.values(piece));
      if (i + 1 == tensors_.pieces.size() ||
          tensors_.pieces[i + 1].tensor != piece.tensor) {
        own.store();
      }
    }
  }

  void apply_counters() {
    const CheckpointManifest& manifest = reader_.manifest();
    for (OptimizedParameter& parameter : subject_.optimizer.parameters()) {
      parameter.steps = manifest.parameters.at(parameter.name()).steps;
    }
    subject_.optimizer.set_steps(manifest.step);
    subject_.optimizer.set_learning_rate(manifest.engine.at("learning_rate"));
    const auto& scale = manifest.engine.at("loss_scale");
    subject_.scaler.restore(
        {scale.at("scale"), scale.at("good_steps"), scale.at("skipped_steps")});
  }

  const CheckpointSubject& subject_;
  CheckpointReader reader_;
  SubjectTensors tensors_;
  RngState rng_;
  std::vector<at::Tensor> wholes_;
  std::vector<at::Tensor> opaques_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::pair<Checkpointable*, std::optional<CheckpointState>>>
      states_;
};

void check_same_step(Pager& pager, int64_t step) {
  const at::Tensor ends = at::tensor({step, -step}, at::kLong);
  pager.max_over_ranks(ends);
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
  std::optional<Loading> loading;
  on_all_ranks(subject.pager, "load: reading the checkpoint", [&] {
    loading.emplace(subject, path);
  });
  check_same_step(subject.pager, loading->step());
  // Gradients of before have no meaning after.
  subject.pager.settle_gradients();
  on_all_ranks(subject.pager, "load", [&] { loading->apply(); });
  return loading->step();
}

} // namespace tessera

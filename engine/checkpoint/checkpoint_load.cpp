// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/checkpoint.h"

#include "tessera/engine/checkpoint/model_loading.h"
#include "tessera/engine/checkpoint/rng_state.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <utility>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

/// Finds and checks everything that one rank needs before the engine is
/// changed, so that nothing can be missing afterwards.
class Loading {
 public:
  Loading(
      const CheckpointSubject& subject,
      const ModelTensors& model,
      const fs::path& path)
      : subject_(subject),
        model_(model),
        reader_(find_checkpoint(path)),
        tensors_(tensors_of(subject, model)),
        loading_(subject, model, tensors_, reader_, saved_rank()) {
    check_nothing_is_left();
    saved_generators_ = find_state(rng_);
    for (Checkpointable* state : subject.states) {
      states_.emplace_back(state, find_state(*state));
    }
  }

  const CheckpointReader& reader() const {
    return reader_;
  }

  /// First: a state may refuse what it is given, such as the position in other
  /// data, and then the engine is as it was.
  void load_states() {
    for (auto state = states_.rbegin(); state != states_.rend(); ++state) {
      if (state->second) {
        state->first->load_state(*state->second);
      }
    }
  }

  void apply() {
    loading_.apply();
    const auto& scale = reader_.manifest().engine.at("loss_scale");
    subject_.scaler.restore(
        {scale.at("scale"), scale.at("good_steps"), scale.at("skipped_steps")});
    if (!reader_.manifest().lineage.empty()) {
      subject_.lineage = {reader_.manifest().lineage};
    }
    // Generators last: loading the rest may use them.
    if (saved_generators_) {
      rng_.load_state(*saved_generators_);
    }
  }

 private:
  /// The rank of the checkpoint whose state this one loads, if there is one
  /// (see Checkpointable::is_per_rank()). Ranks of a tensor-parallel group draw
  /// the same random numbers: if the group's size has changed, all of its ranks
  /// load the state of the same rank.
  std::optional<int> saved_rank() const {
    const DeviceMesh& mesh = subject_.pager.ranks().model();
    const int local = mesh.size(kTensorAxis);
    const int saved = reader_.manifest().tensor_ranks;
    const int rank = mesh.rank() / local * saved +
                     (saved == local ? mesh.index(kTensorAxis) : 0);
    return rank < reader_.world_size() ? std::optional(rank) : std::nullopt;
  }

  void check_nothing_is_left() const {
    const auto is_known = [&](const std::string& name) {
      return model_.find(name) != nullptr;
    };
    for (const auto& [name, parameter] : reader_.manifest().parameters) {
      if (is_known(name) ||
          std::any_of(
              parameter.aliases.begin(), parameter.aliases.end(), is_known)) {
        continue;
      }
      TESSERA_FAIL(
          "load: the checkpoint has a parameter '{}' that the model does not have; the nearest is '{}'. Build the model as it was saved.",
          name,
          runtime::nearest_name(name, model_.parameter_names()));
    }
  }

  std::optional<CheckpointState> find_state(const Checkpointable& state) {
    const auto rank = state.is_per_rank() ? saved_rank() : std::optional(0);
    if (!rank) {
      return std::nullopt;
    }
    const auto& states =
        reader_.manifest().ranks[static_cast<size_t>(*rank)].states;
    const auto found = states.find(state.name());
    if (found == states.end() && state.is_optional()) {
      return std::nullopt;
    }
    TESSERA_CHECK(
        found != states.end(),
        "load: the checkpoint has no state '{}'; it was not passed to save().",
        state.name());
    return CheckpointState{
        found->second, reader_.tensors(*rank, "state/" + state.name() + "/")};
  }

  const CheckpointSubject& subject_;
  const ModelTensors& model_;
  CheckpointReader reader_;
  SubjectTensors tensors_;
  ModelLoading loading_;
  RngState rng_;
  std::optional<CheckpointState> saved_generators_;
  std::vector<std::pair<Checkpointable*, std::optional<CheckpointState>>>
      states_;
};

/// Shards of different checkpoints, such as those of other runs in folders that
/// nodes do not share, would be mixed.
void check_same_checkpoint(
    const CheckpointSubject& subject,
    const CheckpointReader& reader) {
  const CheckpointManifest& manifest = reader.manifest();
  const std::string differences = runtime::find_differences(
      subject.files,
      manifest.identity,
      formatted(
          "'{}', of step {} of {}",
          fs::absolute(reader.path()).string(),
          manifest.step,
          manifest.lineage.empty() ? "a run without a number"
                                   : "run " + manifest.lineage),
      "the checkpoints that the ranks found",
      subject.pager.ranks().watch_failures());
  TESSERA_CHECK(
      differences.empty(),
      "load: the ranks have found different checkpoints:{}\nAll ranks must load the same one: from a folder that all nodes see, or from copies of it.",
      differences);
}

} // namespace

CheckpointLineage new_lineage() {
  // Not from the generators of LibTorch, whose numbers are the user's.
  std::random_device random;
  return {formatted("{:08x}{:08x}", random(), random())};
}

int64_t load_checkpoint(
    const CheckpointSubject& subject,
    const fs::path& path) {
  const c10::NoGradGuard no_grad;
  subject.pager.agree_on_files(sharding::FileUse::kLoad);
  ModelTensors model(subject.pager, subject.files, subject.module);
  std::optional<Loading> loading;
  model.on_all_ranks("load: reading the checkpoint", [&] {
    loading.emplace(subject, model, path);
  });
  check_same_checkpoint(subject, loading->reader());
  model.on_all_ranks(
      "load: reading the states", [&] { loading->load_states(); });
  // Earlier gradients are meaningless afterwards.
  subject.pager.settle_gradients();
  model.on_all_ranks("load", [&] { loading->apply(); });
  return loading->reader().manifest().step;
}

} // namespace tessera::engine

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Engine` trains an unmodified module with its parameters, gradients and
// optimizer state sharded over all ranks; `wrap()` makes one.

#include "tessera/engine/checkpoint/pending_save.h"
#include "tessera/engine/ema_scope.h"
#include "tessera/engine/engine_statistics.h"
#include "tessera/engine/gather_scope.h"
#include "tessera/engine/options/engine_options.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/deferred_scalar.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/weights/load_weights.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::engine {

class ActivationOffload;
class BackgroundSaves;
struct CheckpointLineage;
struct CheckpointSubject;
class OptimizerRules;
class RegisteredParameters;
class ShardedOptimizer;
class StepGuard;

} // namespace tessera::engine

namespace tessera::offload {

class TierStores;

} // namespace tessera::offload

namespace tessera::runtime {

class SavedTensorScope;

} // namespace tessera::runtime

namespace tessera::sharding {

struct NonfiniteGradients;
struct Page;
class Pager;
struct RankIntent;

} // namespace tessera::sharding

namespace tessera {

class Checkpointable;
class ParallelMesh;
struct PipelineCallbacks;
class PipelineExecutor;
class TensorRecorder;
struct TensorSummary;
class TransferWaits; // sharding/paging/transfer_waits.h
class ModelTensors;

/// What OnNonfinite::kStop throws, on all ranks.
class NonfiniteGradientError : public Error {
 public:
  NonfiniteGradientError(const std::string& problem, const std::string& remedy)
      : Error(problem + ". " + remedy), problem_(problem) {}

  /// The first sentence, without its full stop.
  const std::string& problem() const {
    return problem_;
  }

 private:
  std::string problem_;
};

/// Checks what can be checked without a module or a job, for programs that read
/// options before they load a model. wrap() calls it too.
/// @throws tessera::Error if memory, placement or offload options are out of
///   range, contradict each other or name a folder that does not exist.
void check(const EngineOptions& options);

/// Trains one wrapped module. All ranks call the functions marked collective,
/// in the same order; ranks that differ get an error.
///
/// ```
/// tessera::init();
/// auto engine = tessera::wrap(model, options);
/// auto loss = loss_function(model->forward(x), y);
/// engine.backward(loss);
/// engine.clip_grad_norm(1.0);
/// engine.step();
/// ```
class Engine {
 public:
  /// Use wrap(). Collective.
  Engine(
      World& world,
      std::shared_ptr<torch::nn::Module> module,
      const EngineOptions& options);
  /// Frees the shards. The module remains usable only if unwrap() was called.
  ~Engine();
  /// What `other` had; it can only be destroyed.
  Engine(Engine&& other) noexcept;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine& operator=(Engine&&) = delete;

  /// Calls loss.backward() with the loss multiplied by loss_scale(), after a
  /// check that the module has the parameters that were wrapped, and no others.
  /// Gradients are averaged over the ranks and accumulate until step() or
  /// zero_grad(). Collective, as is the forward that computed `loss`. Pipeline
  /// stages that each compute a loss call it, as with a
  /// PipelineTransformerBlockList; for other pipelines see run_pipeline().
  /// @param loss scalar, of the same dtype on all ranks. A float16 loss lowers
  ///   a dynamic loss scale to 32768, the largest power of two in float16. One
  ///   that gives no parameter of the module a gradient is warned of once.
  void backward(const at::Tensor& loss);

  /// Runs all forwards and backwards of one step of a pipeline, if the module
  /// is one of its pipeline stages. Losses are multiplied by loss_scale();
  /// gradients are those of the mean over the micro-batches. Collective over
  /// all ranks.
  /// @param stage must outlive the call.
  /// @return the result of PipelineExecutor::run().
  std::vector<at::Tensor> run_pipeline(
      PipelineExecutor& stage,
      const PipelineCallbacks& callbacks);

  /// Scales all gradients so that their global p-norm is at most `max_norm` (by
  /// max_norm / (norm + 1e-6), as PyTorch does). A norm that is not finite
  /// leaves the gradients unchanged where step() then skips or stops without
  /// them. Collective. Does not wait for the device where gradients and their
  /// updates are on one, p is finite and neither layers nor experts are
  /// divided.
  /// @param p above 0; infinity gives the largest magnitude.
  /// @return the norm before clipping. To read it is to wait for the device.
  DeferredScalar clip_grad_norm(double max_norm, double p = 2);

  /// Returns the p-norm of all gradients of the whole model, as
  /// clip_grad_norm() does. Collective.
  DeferredScalar grad_norm(double p = 2);

  /// Multiplies all gradients by `factor`, to clip by another norm. Not
  /// collective, but all ranks must call it.
  void multiply_gradients(double factor);

  /// Clamps every element of every gradient to [-limit, limit]. Collective.
  void clip_grad_value(double limit);

  /// Adds a gradient that backward() did not compute, e.g. one from
  /// torch::autograd::grad, to that of `parameter`, averaged over the ranks.
  /// Of a parameter that pipeline stages share, averaged over theirs: each of
  /// these stages calls it as often. Collective.
  /// @param gradient this rank's whole gradient, of the parameter's shape; of a
  ///   parameter that tensor-parallel ranks divide, the whole, as grad() has
  ///   it, or this rank's part.
  void reduce(const at::Tensor& parameter, const at::Tensor& gradient);

  /// Makes one optimizer step and resets all gradients to none. Collective.
  /// @return false if the step was skipped because gradients were not finite on
  ///   some rank, with loss scaling or OnNonfinite::kSkip; a dynamic loss scale
  ///   has then been lowered.
  /// @throws NonfiniteGradientError with OnNonfinite::kStop.
  /// @throws tessera::Error if there are parameters to train but none has a
  ///   gradient, or the module got others after wrap().
  bool step();

  /// The factor by which backward() multiplies losses now; 1 without scaling.
  double loss_scale() const {
    return scaler_.scale();
  }
  LossScaler& loss_scaler() {
    return scaler_;
  }

  /// Drops gradients not yet applied. Not collective; all ranks must do it.
  void zero_grad();

  /// The whole gradient of a parameter, averaged over the ranks; undefined if
  /// no rank has one. Of a parameter that tensor-parallel ranks divide, it is
  /// that of all of them. Collective, over these ranks too.
  at::Tensor grad(const at::Tensor& parameter);

  /// Unshards all parameters until the scope ends, in the dtype in which
  /// operators use them: under a lower PrecisionPolicy::parameters, what is
  /// written is rounded to it. for_each_parameter() has full precision. Of a
  /// parameter that tensor-parallel ranks divide, operators use this rank's
  /// part, and so does the scope; GatherScope::full() is the whole. Collective.
  GatherScope gather(const GatherOptions& options = {});
  /// Unshards the given parameters and those in the same groups. Collective.
  GatherScope gather(
      at::TensorList parameters,
      const GatherOptions& options = {});
  /// Unshards the parameters of a submodule of the wrapped module. Collective.
  GatherScope gather(
      const torch::nn::Module& part,
      const GatherOptions& options = {});

  /// Puts the averages of the trained weights (OptimizerOptions::ema_decay) in
  /// the place of the weights until the scope ends, to score or to export them.
  /// Call it between step() and the next backward(). Before the first step,
  /// which the averages begin with, it changes nothing. Needs memory for one
  /// shard at a time, and for 16-bit weights without master weights, or rounded
  /// stochastically, for a copy of them on the host. Collective, as is the end
  /// of the scope; blocks.
  /// ```
  /// {
  ///   const auto averaged = engine.ema();
  ///   engine.save_weights("averaged.safetensors");
  /// }
  /// ```
  /// @throws tessera::Error if no averages are kept, another scope exists, or
  ///   parameters have gradients.
  EmaScope ema();
  /// The steps that the averages are of; 0 before the first one, after
  /// load_weights(), or if none are kept.
  int64_t ema_steps() const;

  /// Calls `visit` with the name and the whole value of every parameter, of a
  /// tied one under each of its names, holding one group at a time. What
  /// tensor-parallel ranks divide is whole on each of them; of divided experts,
  /// each rank visits its own. With master weights the value is that
  /// of the master weight, in the module's original dtype. The tensor is valid
  /// during the call only. Collective; `visit` is called on all ranks.
  /// @param writable what `visit` writes to the tensor, the same on all ranks,
  ///   becomes the value, also of the master weight, whose dtype the tensor
  ///   has: nothing is rounded as by a writable gather(). A tied parameter
  ///   comes once then, by its first name. Gradients are dropped, as by load().
  void for_each_parameter(
      const std::function<void(const std::string&, const at::Tensor&)>& visit,
      bool writable = false);

  /// Loads weights straight into the shards, and into buffers and ignored
  /// parameters: all of the model or, as the options say, some of it; see
  /// tessera::load_weights() for names and errors. The files hold a whole
  /// model, of which each rank reads its part; the report is that of all
  /// pipeline stages. Everything else - steps, learning rate, generators and,
  /// without LoadWeightsOptions::optimizer_state, optimizer state - stays as it
  /// is. Collective.
  /// @param path files as for tessera::load_weights(), or a checkpoint of
  ///   save() or a folder of them, of any layout of ranks and of any model.
  LoadWeightsReport load_weights(
      const std::filesystem::path& path,
      const LoadWeightsOptions& options = {});
  /// The same with files that are open already.
  LoadWeightsReport load_weights(
      const sharding::WeightFiles& files,
      const LoadWeightsOptions& options = {});

  /// Writes all parameters and buffers of the whole model to a safetensors
  /// file, or to model.safetensors in a folder; rank 0 holds one tensor at a
  /// time. See tessera::save_weights(). Collective; blocks on the disk.
  void save_weights(const std::filesystem::path& path);

  /// Describes the tensors of the model over all ranks and reads their current
  /// values on request. The engine must outlive it. Collective.
  ModelTensors model_tensors();

  /// Gives the module its whole parameters back; afterwards the engine can only
  /// be destroyed. Needs the memory of the whole model. Collective.
  void unwrap();

  /// Sums a small CPU tensor, such as metrics or counters, over all ranks of
  /// the job, in place. Collective; blocks.
  void sum_over_ranks(const at::Tensor& values);

  /// Checks that all ranks have the same values, as before a visitor of
  /// for_each_parameter() writes them. Pipeline stages have their own.
  /// Collective; blocks.
  /// @param function named in the error.
  /// @param values by name, of any shape, dtype and device.
  /// @throws tessera::Error on all ranks if they differ, naming one of them.
  void check_same_values(
      const std::string& function,
      const std::vector<std::pair<std::string, at::Tensor>>& values);

  /// A check for waits on collectives of the caller: throws when another rank
  /// has reported a failure. The engine must outlive it.
  std::function<void()> watch_failures();

  /// Writes parameters, optimizer state, buffers, counters and random number
  /// generators to a new folder "step-N" in `folder`, which all ranks must see.
  /// Ranks with different parts of the model write one checkpoint of the whole
  /// model. If the job dies meanwhile, the earlier checkpoints remain loadable.
  /// Gradients are not saved, with a warning if there are some: call it after
  /// step().
  /// Where another run or engine has saved this step in `folder`, its
  /// checkpoint is replaced, with a warning. Collective; blocks on the disk.
  /// @param states further state to save: schedules, the position in the data.
  ///   See Checkpointable::is_per_rank().
  /// @param keep_last if above 0, all but this many of the run's latest
  ///   checkpoints are removed; never the one that was just written, nor those
  ///   of another run or engine.
  /// @return the folder of the checkpoint.
  /// @throws tessera::Error on every rank, before anything is written, if ranks
  ///   have other values of what a checkpoint has once.
  std::filesystem::path save(
      const std::filesystem::path& folder,
      const std::vector<Checkpointable*>& states = {},
      int keep_last = 0);

  /// As save(), but returns once the state is copied to host memory; files are
  /// written while training continues. Requires
  /// EngineOptions::save_in_background. Waits until the save before is done,
  /// as do save(), load() and the destructor. Collective.
  PendingSave save_in_background(
      const std::filesystem::path& folder,
      const std::vector<Checkpointable*>& states = {},
      int keep_last = 0);
  /// Whether save_in_background() may be called.
  bool saves_in_background() const {
    return saves_ != nullptr;
  }

  /// Identifies the run that the engine's checkpoints belong to: one of its
  /// own, or that of the checkpoint that was loaded. Checkpoints have rank 0's.
  const std::string& lineage() const;

  /// Loads a checkpoint. On the number of ranks that saved it, training resumes
  /// bit for bit. Other numbers of data, shard, tensor and pipeline ranks and
  /// other groups can load it too, if the whole model is the same. Collective;
  /// blocks on the disk.
  /// @param path a checkpoint, or a folder of checkpoints, of which the latest
  ///   is loaded.
  /// @throws tessera::Error on every rank, before anything has changed, if
  ///   something is missing, damaged, or of another model or optimizer.
  /// @return the step that was loaded.
  int64_t load(
      const std::filesystem::path& path,
      const std::vector<Checkpointable*>& states = {});

  double learning_rate() const;
  /// Sets the rate of the following updates. With
  /// EngineOptions::update_in_backward, call it before the first backward of a
  /// step.
  /// @throws tessera::Error if `lr` is negative or not finite, or would change
  ///   after backward has updated groups.
  void set_learning_rate(double lr);

  /// The parameters that the engine trains, in the order of its groups.
  std::vector<at::Tensor> trained_parameters() const;

  /// Changes the hyperparameters of one parameter from the next update on, as a
  /// ParameterRule of EngineOptions::optimizer does by name; its pattern is not
  /// used. See EngineOptimizer. Not collective, but all ranks must do it.
  /// @param group number that parameters with equal options of `rule` share; at
  ///   least 1.
  /// @throws tessera::Error on values out of range, a parameter that is not
  ///   trained, or a rule of another optimizer than wrap() was given.
  void set_parameter_options(
      const at::Tensor& parameter,
      const ParameterRule& rule,
      size_t group = 1);

  /// Bytes on this rank by purpose, as planned by wrap(); for activations in
  /// host memory their limit.
  const MemoryBytes& planned_memory(
      MemoryTier tier = MemoryTier::kDevice) const {
    return planned_memory_[static_cast<size_t>(tier)];
  }
  /// Bytes on this rank by purpose, as allocated now, and for gradients and
  /// reduce slots also those that exist only while gradients are in them.
  MemoryBytes measured_memory(MemoryTier tier = MemoryTier::kDevice) const;
  /// Bytes on this rank by purpose, as allocated now.
  MemoryBytes allocated_memory(MemoryTier tier = MemoryTier::kDevice) const;

  EngineStatistics stats() const;
  /// Records where computation waits for all-gathers, reductions and tiers.
  TransferWaits& transfer_waits();
  /// The operators whose outputs the last forward saved, largest first; empty
  /// where no activations leave the device. See saved_activations_table().
  std::vector<SavedByProducer> saved_activations() const;
  const sharding::Pager& pager() const {
    return *pager_;
  }
  /// The device of the parameters.
  c10::Device device() const;

 private:
  friend std::vector<TensorSummary> inspect_model(
      Engine& engine,
      const std::string& pattern);
  friend std::vector<TensorSummary> inspect_tensor(
      Engine& engine,
      const TensorRecorder& recorder);
  void check_usable(const char* function) const;
  /// Also that the weights are in their place.
  void check_may_change(const char* function) const;
  void check_can_save(const char* function) const;
  /// What save() writes and load() reads.
  engine::CheckpointSubject checkpoint_subject(
      const std::vector<Checkpointable*>& states);
  /// Makes gradients final, including those of copies of tied parameters on
  /// other pipeline stages.
  void settle_gradients(const sharding::RankIntent& intent);
  /// That the module has the parameters that were wrapped.
  void check_parameters() const;
  /// @throws tessera::Error after a move.
  void check_not_moved(const char* function) const;
  void report_nonfinite(const sharding::NonfiniteGradients& found) const;
  void check_keeps_gradients(const char* function) const;
  /// Calls `work`.
  /// @throws tessera::Error if memory runs out in it, with the engine's
  ///   allocations by purpose; the other ranks then get an error too.
  void reporting_memory(
      const char* function,
      const std::function<void()>& work);
  std::vector<sharding::Page*> pages_of(at::TensorList tensors) const;

  /// Scopes see by it that the engine is gone.
  std::shared_ptr<const void> lifetime_ = std::make_shared<char>();
  std::shared_ptr<torch::nn::Module> module_;
  std::unique_ptr<MemoryLedger> ledger_;
  std::shared_ptr<void> libraries_; ///< counts MemoryPurpose::kLibraries
  std::unique_ptr<offload::TierStores> tiers_;
  std::unique_ptr<sharding::Pager> pager_;
  std::unique_ptr<Communicator> files_; ///< all ranks, while they use files
  std::unique_ptr<engine::CheckpointLineage> lineage_;
  std::unique_ptr<engine::ShardedOptimizer> optimizer_;
  /// Of module_, when it was wrapped.
  std::unique_ptr<engine::RegisteredParameters> registered_;
  /// Null: nobody looks at gradients, or loss scaling does.
  std::unique_ptr<engine::StepGuard> guard_;
  bool norms_on_device_ = false; ///< of all gradients, on all ranks
  /// Whether ranks exchange momentum, see Optimizer::sends_momentum().
  bool sends_momentum_ = false;
  LossScaler scaler_;
  std::unique_ptr<engine::ActivationOffload> activations_; ///< null with kOff
  /// Null without EngineOptions::recompute_operators. It ends before
  /// activations_, to which it passes on what it does not recompute.
  std::unique_ptr<runtime::SavedTensorScope> recomputed_operators_;
  bool logs_activations_ = false; ///< after the next step
  /// Since the last step. Nothing that a stage trains may have been in it.
  bool ran_pipeline_ = false;
  bool warned_of_other_loss_ = false;
  TierBytes planned_memory_{};
  std::unique_ptr<engine::BackgroundSaves> saves_; ///< null: not wanted
};

/// Shards the parameters of `module` over all ranks. Afterwards the module is
/// used as before: forward gathers parameters when it needs them. Joins the job
/// (tessera::init()) if that has not happened. Collective.
/// @param module remains the caller's; it must outlive the engine.
Engine wrap(torch::nn::Module& module, const EngineOptions& options = {});

/// As above, with shared ownership of the module.
Engine wrap(
    std::shared_ptr<torch::nn::Module> module,
    const EngineOptions& options = {});

/// For torch::nn module holders such as torch::nn::Sequential.
template <typename Contained>
Engine wrap(
    const torch::nn::ModuleHolder<Contained>& holder,
    const EngineOptions& options = {}) {
  return wrap(std::shared_ptr<torch::nn::Module>(holder.ptr()), options);
}

} // namespace tessera

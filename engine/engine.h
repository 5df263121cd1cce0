// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a user holds: an unmodified module, trained with its parameters,
// gradients and optimizer state divided over all ranks.

#include "tessera/engine/activation_offload.h"
#include "tessera/engine/gather_scope.h"
#include "tessera/engine/loss_scaler.h"
#include "tessera/engine/memory_budget.h"
#include "tessera/engine/optim/sharded_optimizer.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/sharding/inspect.h"
#include "tessera/sharding/load_weights.h"
#include "tessera/sharding/model_ranks.h"
#include "tessera/sharding/pager.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

class Checkpointable;
struct CheckpointPart;
struct FileGroups;
class PipelineExecutor;
class WholeModel;
struct PipelineCallbacks;

struct EngineOptions {
  /// How parameters are grouped, prefetched and started.
  PagerOptions sharding;
  MemoryBudget memory;
  OffloadOptions offload;
  LossScaleOptions loss_scale;
  OptimizerOptions optimizer;
  /// Every group is updated during backward, as soon as its gradients are final
  /// (from the second step on): they need no memory of their own, and a step
  /// ends sooner. For optimizers that update each element alone, without loss
  /// scaling and without clipping. The numbers are the same. An exception in
  /// backward leaves the groups that were updated until then updated.
  bool update_in_backward = false;
  /// Where ranks divide layers too (tensor, pipeline), the module being this
  /// rank's part of the model: parameters are divided over the ranks that have
  /// the same part, `shard` x `context` of the mesh, and gradients are averaged
  /// over those with other batches as well. Norms and the loss scale are those
  /// of the whole model, and so is what files hold: parameters of a stage have
  /// the names that they have in the whole. In place of
  /// PagerOptions::shard_ranks. Not owned; looked at by wrap() alone. Null: all
  /// ranks have the whole module.
  const ParallelMesh* parallel = nullptr;
  /// Rank 0 logs the memory table before the first step.
  bool log_memory = true;
};

/// What can be told without a module and without a job: for programs that read
/// options before they load a model. wrap() does it too.
/// @throws tessera::Error on memory and offload options that are out of range,
///   do not go together or name a folder that is not there.
void check(const EngineOptions& options);

/// Trains one wrapped module. Functions marked collective are called by every
/// rank, in the same order; ranks that differ get an error.
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
  /// Frees the shards. The module is usable again only after unwrap().
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine& operator=(Engine&&) = delete;

  /// loss.backward(), with the module's identity checked first and the loss
  /// multiplied by loss_scale(). Gradients are averaged over the ranks and
  /// accumulate until step() or zero_grad(). Collective, as is the forward that
  /// made `loss`. Pipeline stages have losses of their own here, as with a
  /// PipelineTransformerBlockList; otherwise see run_pipeline().
  /// @param loss scalar, of the same type on all ranks. A float16 one lowers a
  ///   dynamic loss scale to 32768, which is the largest that float16 has.
  void backward(const at::Tensor& loss);

  /// The same for one step of a pipeline, whose stage the module is: all of its
  /// forwards and backwards. Losses are multiplied by loss_scale(), gradients
  /// are those of the mean over the micro-batches. Collective over all ranks.
  /// @param stage outlives the call.
  /// @return PipelineExecutor::run()'s.
  std::vector<at::Tensor> run_pipeline(
      PipelineExecutor& stage,
      const PipelineCallbacks& callbacks);

  /// Scales all gradients so that their global p-norm is at most `max_norm`
  /// (factor max_norm / (norm + 1e-6), as torch). A norm that is not finite
  /// leaves them as they are when losses are scaled: step() then skips.
  /// Collective.
  /// @param p above 0; infinity for the largest magnitude.
  /// @return the norm before clipping.
  double clip_grad_norm(double max_norm, double p = 2);

  /// The p-norm of all gradients, of the whole model: as clip_grad_norm().
  /// Collective.
  double grad_norm(double p = 2);

  /// Multiplies all gradients, for clipping by a norm of your own. Not
  /// collective, but all ranks must do it.
  void multiply_gradients(double factor);

  /// Limits every element of every gradient to [-limit, limit]. Collective.
  void clip_grad_value(double limit);

  /// Adds a gradient that was not made by backward(), e.g. by
  /// torch::autograd::grad, to a parameter's: averaged over the ranks.
  /// Collective.
  /// @param gradient whole, of the parameter's shape, of this rank.
  void reduce(const at::Tensor& parameter, const at::Tensor& gradient);

  /// One optimizer step; afterwards all gradients are none. Collective.
  /// @return false when the step was skipped because scaled gradients were not
  ///   finite on some rank; the loss scale has been lowered.
  /// @throws tessera::Error when there are parameters to train, and none has a
  ///   gradient.
  bool step();

  /// By what backward() multiplies losses now; 1 without scaling.
  double loss_scale() const {
    return scaler_.scale();
  }
  LossScaler& loss_scaler() {
    return scaler_;
  }

  /// Drops all gradients. Not collective, but all ranks must do it.
  void zero_grad();

  /// The whole gradient of a parameter, averaged over the ranks; undefined when
  /// no rank has one. Collective.
  at::Tensor grad(const at::Tensor& parameter);

  /// Makes all parameters whole until the scope ends. Collective.
  GatherScope gather(bool writable = false);
  /// Makes the given parameters (and those in the same groups) whole.
  GatherScope gather(
      const std::vector<at::Tensor>& parameters,
      bool writable = false);
  /// Makes the parameters of a part of the wrapped module whole.
  GatherScope gather(const torch::nn::Module& part, bool writable = false);

  /// Calls `visit` with every name and whole value, holding one group at a
  /// time; with master weights it is their value, in the module's own type. It
  /// is valid during the call. Collective; all ranks visit.
  void for_each_parameter(
      const std::function<void(const std::string&, const at::Tensor&)>& visit);

  /// Loads safetensors straight into the shards; buffers and ignored parameters
  /// too. See tessera::load_weights() for names and errors. The files hold a
  /// whole model, of which each rank reads what it has: the report says what no
  /// pipeline stage has taken. Collective.
  LoadWeightsReport load_weights(
      const std::filesystem::path& path,
      const LoadWeightsOptions& options = {});

  /// Writes all parameters and buffers of the whole model to a safetensors
  /// file, or a folder's model.safetensors, one group at a time; see
  /// tessera::save_weights(). Collective; blocks on the disk.
  void save_weights(const std::filesystem::path& path);

  /// What the model is made of over all ranks, and its values as they are when
  /// they are asked for. The engine outlives it. Collective.
  WholeModel whole_model();

  /// Gives the module its whole parameters back; the engine can only be
  /// destroyed afterwards. Needs the memory of the whole model. Collective.
  void unwrap();

  /// Adds up a small CPU tensor over all ranks of the job, in place: metrics,
  /// counters. Collective; blocks.
  void sum_over_ranks(const at::Tensor& values);

  /// Writes parameters, optimizer state, buffers, counters and the generators
  /// of random numbers to the new folder "step-N" in `folder`, which all ranks
  /// see; ranks with parts of the model write one checkpoint of the whole.
  /// Whenever the job dies, the checkpoints that were there before can be
  /// loaded, or this one. Gradients are not kept: save after step().
  /// Collective; blocks on the disk.
  /// @param states more to keep: schedules, the position in the data.
  /// @param keep_last above 0: older checkpoints than so many are removed.
  /// @return the checkpoint's folder.
  std::filesystem::path save(
      const std::filesystem::path& folder,
      const std::vector<Checkpointable*>& states = {},
      int keep_last = 0);

  /// Takes a checkpoint over; on as many ranks as it was saved by, training
  /// goes on bit for bit. Any other data, shard, tensor and pipeline ranks and
  /// other groups read it too, as long as the whole model is the same.
  /// Collective; blocks on the disk.
  /// @param path a checkpoint, or a folder of them, of which the latest is
  ///   taken.
  /// @throws tessera::Error on every rank, before anything has changed, when
  ///   something is missing, damaged, or of another model or optimizer.
  /// @return the step that was loaded.
  int64_t load(
      const std::filesystem::path& path,
      const std::vector<Checkpointable*>& states = {});

  double learning_rate() const;
  /// With EngineOptions::update_in_backward, to be set before the first
  /// backward of a step. @throws tessera::Error when it comes later.
  void set_learning_rate(double lr);

  /// Bytes on this rank by purpose, as wrap() has found them: what parameters,
  /// gradients and slots take, which are allocated by then, and what the
  /// optimizer's state will take; for activations on the host it is their
  /// limit.
  const MemoryBytes& planned_memory(
      MemoryTier tier = MemoryTier::kDevice) const {
    return planned_memory_[static_cast<size_t>(tier)];
  }
  /// Bytes on this rank by purpose, as allocated now.
  MemoryBytes measured_memory(MemoryTier tier = MemoryTier::kDevice) const;

  const PagerStatistics& statistics() const;
  /// Where compute waits for gathers, reductions and tiers.
  TransferWaits& transfer_waits() {
    return pager_->transfer_waits();
  }
  /// Updates beside forward and backward; zeros with UpdateOverlap::kOff.
  const UpdateStatistics& update_statistics() const {
    return optimizer_->update_statistics();
  }
  /// Saved tensors, on the device and on the host; zeros with
  /// OffloadActivations::kOff.
  ActivationStatistics activation_statistics() const;
  /// Which operators made what the last forward saved, largest first; empty
  /// with OffloadActivations::kOff. See saved_activations_table().
  std::vector<SavedByProducer> saved_activations() const;
  const Pager& pager() const {
    return *pager_;
  }
  /// Of the parameters.
  c10::Device device() const;

 private:
  friend std::vector<TensorSummary> inspect_model(
      Engine& engine,
      const std::string& pattern);
  friend std::vector<TensorSummary> inspect_tensor(
      Engine& engine,
      const TensorRecorder& recorder);
  friend class ExpertEngines;
  void join_model_ranks(
      World& world,
      const ParallelMesh& mesh,
      const OptimizerRules& optimizer);
  void check_usable(const char* function) const;
  /// What save() writes and load() reads. @throws tessera::Error when that
  /// cannot be now.
  CheckpointPart saved_part();
  CheckpointPart loaded_part();
  /// The halves of step(): checks and makes the gradients final, which changes
  /// no weight; then updates them, or skips the step.
  void prepare_step();
  bool apply_step();
  /// Makes the gradients final, those of other stages' copies included.
  void settle_gradients(const RankIntent& intent);
  void check_keeps_gradients(const char* function) const;
  /// Calls `work`. @throws tessera::Error when memory runs out in it, with the
  ///   engine's own by purpose; the other ranks then end with an error too.
  void reporting_memory(
      const char* function,
      const std::function<void()>& work);
  std::vector<size_t> groups_of(const std::vector<at::Tensor>& tensors) const;
  TierBytes plan_memory() const;

  std::shared_ptr<torch::nn::Module> module_;
  std::unique_ptr<World> part_; ///< ranks with this part of the model
  std::unique_ptr<ModelRanks> model_ranks_; ///< null: each rank has all of it
  std::unique_ptr<FileGroups> file_groups_; ///< null then, too
  std::unique_ptr<MemoryLedger> ledger_;
  std::unique_ptr<StateTiers> tiers_;
  std::unique_ptr<Pager> pager_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  LossScaler scaler_;
  std::unique_ptr<ActivationOffload> activations_; ///< none with kOff
  bool logs_activations_ = false; ///< after the next step
  TierBytes planned_memory_{};
};

/// Divides the parameters of `module` over all ranks. From here on the module
/// is used as before: forward gathers what it needs when it needs it. Joins the
/// job (tessera::init()) if that has not happened. Collective.
/// @param module stays the caller's; it must outlive the engine.
Engine wrap(torch::nn::Module& module, const EngineOptions& options = {});

/// As above; the engine shares the ownership.
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

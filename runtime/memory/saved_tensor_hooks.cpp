// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/saved_tensor_hooks.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/dry_heap.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera::runtime {

namespace {

namespace autograd = torch::autograd;

/// The sinks of all scopes, most recent last. Dry runs of other threads, such
/// as the stages of a planned pipeline, are jobs of their own in this process:
/// a sink whose scope began in a dry run takes what that run saves, and no
/// other.
class Sinks {
 public:
  /// Of any thread.
  bool any() const {
    return any_.load(std::memory_order_acquire);
  }
  /// Of the calling thread; null if it has none.
  std::shared_ptr<ActivationSink> latest() const {
    const DryHeap* heap = dry_allocation().heap.get();
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(sinks_.rbegin(), sinks_.rend(), [heap](const Entry& each) {
          return each.heap == heap;
        });
    return found == sinks_.rend() ? nullptr : found->sink;
  }
  void add(std::shared_ptr<ActivationSink> sink) {
    const std::lock_guard lock(mutex_);
    sinks_.push_back({std::move(sink), dry_allocation().heap.get()});
    any_ = true;
  }
  void remove(const std::shared_ptr<ActivationSink>& sink) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(
        sinks_.rbegin(), sinks_.rend(), [&sink](const Entry& each) {
          return each.sink == sink;
        });
    sinks_.erase(std::next(found).base());
    any_ = !sinks_.empty();
  }

 private:
  struct Entry {
    std::shared_ptr<ActivationSink> sink;
    const DryHeap* heap; ///< of the dry run of its scope; null: in none
  };

  mutable std::mutex mutex_;
  std::vector<Entry> sinks_;
  std::atomic<bool> any_{false};
};

Sinks& sinks() {
  // Never destroyed: other threads may run operators at exit.
  static auto* const kSinks = new Sinks;
  return *kSinks;
}

bool& wants_host() {
  thread_local bool wanted = false;
  return wanted;
}

class Hooks final : public autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<ActivationSink> sink)
      : sink_(std::move(sink)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    version_ = autograd::impl::version_counter(tensor);
    saved_version_ = version_.current_version();
    saved_ = sink_->take(tensor, wants_host());
    sink_.reset();
  }

  at::Tensor call_unpack_hook() override {
    TESSERA_CHECK(
        version_.current_version() == saved_version_,
        "one of the variables needed for gradient computation has been modified by an inplace operation: a saved tensor of type {} is at version {}; it was saved at version {}. Use the operator that returns a new tensor, or clone the tensor before it is changed.",
        saved_type(),
        version_.current_version(),
        saved_version_);
    return saved_->give();
  }

 private:
  std::string saved_type() {
    const at::Tensor tensor = saved_->give();
    return formatted("{} and shape {}", tensor.toString(), tensor.sizes());
  }

  std::shared_ptr<ActivationSink> sink_; ///< until the tensor has arrived
  std::unique_ptr<SavedActivation> saved_;
  c10::VariableVersion version_;
  uint32_t saved_version_ = 0;
};

/// Virtual functions that are called from outside are forwarded to the previous
/// engine, which keeps its threads and queues; this one starts none.
/// Non-virtual ones work on thread-local state.
class HookingEngine final : public autograd::Engine {
 public:
  explicit HookingEngine(autograd::Engine& before) : before_(before) {}

  autograd::variable_list execute(
      const autograd::edge_list& roots,
      const autograd::variable_list& inputs,
      bool keep_graph,
      bool create_graph,
      bool accumulate_grad,
      const autograd::edge_list& outputs) override {
    return before_.execute(
        roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<autograd::GraphTask>& graph_task,
      std::shared_ptr<autograd::Node> graph_root,
      autograd::InputBuffer&& input_buffer) override {
    return before_.execute_with_graph_task(
        graph_task, std::move(graph_root), std::move(input_buffer));
  }
  std::unique_ptr<autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return before_.make_anomaly_metadata();
  }
  std::unique_ptr<autograd::SavedVariableHooks>
  get_default_saved_variable_hooks() override {
    auto users = before_.get_default_saved_variable_hooks();
    if (users || !sinks().any()) {
      return users;
    }
    auto sink = sinks().latest();
    return sink ? std::make_unique<Hooks>(std::move(sink)) : nullptr;
  }

 private:
  autograd::Engine& before_;
};

autograd::Engine& hooking_engine() {
  // Never destroyed: graphs may be freed later. Constructed before it is
  // installed, so that the previous engine is not this one.
  static auto* const kEngine =
      new HookingEngine(autograd::Engine::get_default_engine());
  return *kEngine;
}

void ensure_engine_installed() {
  static std::once_flag once;
  std::call_once(once, [] {
    hooking_engine();
    autograd::set_default_engine_stub(&hooking_engine);
  });
}

} // namespace

SavedTensorScope::SavedTensorScope(std::shared_ptr<ActivationSink> sink)
    : sink_(std::move(sink)) {
  TESSERA_CHECK(
      sink_ != nullptr, "SavedTensorScope: the sink is null; pass one.");
  ensure_engine_installed();
  sinks().add(sink_);
}

SavedTensorScope::~SavedTensorScope() {
  sinks().remove(sink_);
}

bool saved_tensors_have_sink() {
  return sinks().any() && sinks().latest() != nullptr;
}

SaveToHostScope::SaveToHostScope(bool to_host)
    : before_(std::exchange(wants_host(), to_host)) {}

SaveToHostScope::~SaveToHostScope() {
  wants_host() = before_;
}

} // namespace tessera::runtime

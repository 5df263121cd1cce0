// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/lazy_recorder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/lazy_operators.h"

#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace tessera::sharding {

namespace {

constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

using Stack = torch::jit::Stack;
using ValuePtr = std::shared_ptr<LazyValue>;

/// Handles one operator that the constructor calls.
class Recorder {
 public:
  Recorder(
      LazyRecording& recording,
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      Stack& stack)
      : recording_(recording),
        op_(op),
        keys_(keys),
        stack_(stack),
        name_(op.operator_name().name) {}

  void serve() {
    if (is_allocation(op_)) {
      allocate();
      return;
    }
    look_at_arguments();
    const bool has_lazy = lazy_numel_ >= 0;
    if (is_made_of_others(op_, has_lazy)) {
      run_inner_recorded();
    } else if (!has_lazy || is_metadata_only(op_)) {
      run();
    } else if (writes_lazy_) {
      record_write();
    } else if (writes_real_ || !returns_tensors(op_) || !record_result()) {
      read_now();
    }
  }

 private:
  c10::ArrayRef<c10::IValue> arguments() const {
    return torch::jit::last(stack_, op_.schema().arguments().size());
  }

  void run() {
    const NotRecorded not_recorded;
    op_.callBoxed(stack_);
  }

  /// Runs the kernel; the operators that it calls are recorded.
  void run_inner_recorded() {
    op_.redispatchBoxed(
        keys_ & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode),
        &stack_);
  }

  [[noreturn]] void fail(const std::string& why) const {
    TESSERA_FAIL(
        "tessera::lazy: {} {}. Initialize this tensor after tessera::wrap, in a writable gather scope, or raise LazyOptions::min_numel above its size so that it is created immediately.",
        op_.schema().name(),
        why);
  }

  void look_at_arguments() {
    const auto& schema = op_.schema().arguments();
    const auto values = arguments();
    for (size_t i = 0; i < values.size(); ++i) {
      const bool is_write = schema[i].alias_info() != nullptr &&
                            schema[i].alias_info()->isWrite();
      map_tensors(values[i], [&](const at::Tensor& tensor) {
        const LazyFill* fill = lazy_fill(tensor);
        const bool is_lazy = fill != nullptr;
        if (is_lazy) {
          device_ = tensor.device();
          lazy_numel_ = std::max(lazy_numel_, fill->value->largest_numel);
          is_random_ = is_random_ || !fill->value->seeds.empty();
        }
        if (is_write) {
          (is_lazy ? writes_lazy_ : writes_real_) = true;
          written_arguments_ += 1;
          written_ = i;
        }
        return tensor;
      });
    }
  }

  LazyRandom next_random(const c10::IValue* generator) const {
    const uint64_t stream = recording_.next_random++;
    if (generator != nullptr && generator->isGenerator()) {
      const uint64_t seed = generator->toGenerator().current_seed();
      return {std::make_shared<uint64_t>(seed), stream};
    }
    return {recording_.seed, stream};
  }

  const c10::IValue* generator_argument() const {
    const auto& schema = op_.schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i) {
      if (schema[i].name() == "generator") {
        return &arguments()[i];
      }
    }
    return nullptr;
  }

  /// Handles an allocation: allocates nothing if the tensor can be deferred.
  void allocate() {
    const auto& schema = op_.schema().arguments();
    Stack on_meta(arguments().begin(), arguments().end());
    c10::Device device(at::kCPU);
    for (size_t i = 0; i < schema.size(); ++i) {
      if (schema[i].name() == "device") {
        device = on_meta[i].isNone() ? device : on_meta[i].toDevice();
        on_meta[i] = c10::Device(at::kMeta);
      } else if (schema[i].name() == "pin_memory") {
        on_meta[i] = c10::IValue();
      }
    }
    const NotRecorded not_recorded;
    op_.callBoxed(on_meta);
    const at::Tensor meta = on_meta.back().toTensor();
    if (device.is_meta() || meta.layout() != at::kStrided ||
        !is_deferrable(meta.scalar_type()) ||
        meta.numel() < std::max<int64_t>(recording_.options.min_numel, 1)) {
      op_.callBoxed(stack_);
      return;
    }
    torch::jit::drop(stack_, schema.size());
    torch::jit::push(stack_, lazy_like(meta, device, value_of(meta)));
  }

  /// Returns the still empty value of a storage for a tensor like `meta`.
  static ValuePtr value_of(const at::Tensor& meta) {
    return std::make_shared<LazyValue>(
        static_cast<int64_t>(meta.storage().nbytes() / meta.itemsize()),
        meta.scalar_type());
  }

  /// Makes a lazy tensor with the sizes and strides of `meta`.
  at::Tensor lazy_like(
      const at::Tensor& meta,
      c10::Device device,
      ValuePtr value) const {
    std::ostringstream name;
    name << "a tensor of sizes " << meta.sizes() << " made under tessera::lazy";
    const int64_t numel = value->numel;
    const auto options = at::TensorOptions().dtype(value->dtype).device(device);
    at::Tensor tensor = make_deferred(
        {numel}, options, {LazyFill{std::move(value)}, name.str()});
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
        meta.sizes(), meta.strides());
    recording_.made.emplace_back(tensor.storage().getWeakStorageImpl());
    return tensor;
  }

  static at::Tensor stand_in(const at::Tensor& tensor) {
    return at::empty_strided(
        tensor.sizes(),
        tensor.strides(),
        at::TensorOptions().dtype(tensor.dtype()).device(at::kMeta));
  }

  /// Captures the call as it is now, independent of later changes of its
  /// arguments.
  /// @param written the argument that is written to, if any.
  std::shared_ptr<LazyCall> capture(std::optional<size_t> written) const {
    const NotRecorded not_recorded;
    const c10::NoGradGuard no_grad;
    auto call = std::make_shared<LazyCall>(LazyCall{op_, {}, {}, nullptr, {}});
    const auto values = arguments();
    for (size_t i = 0; i < values.size(); ++i) {
      call->arguments.push_back(
          map_tensors(values[i], [&](const at::Tensor& tensor) -> at::Tensor {
            const LazyFill* fill = lazy_fill(tensor);
            if (fill == nullptr) {
              at::Tensor copy = tensor.detach().cpu().clone();
              if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
                copy.unsafeGetTensorImpl()->set_wrapped_number(true);
              }
              return copy;
            }
            if (tensor.scalar_type() != fill->value->dtype ||
                tensor.is_conj() || tensor.is_neg()) {
              fail("reads a lazy tensor as another dtype");
            }
            at::Tensor stub = stand_in(tensor);
            if (written == i) {
              call->target = stub.unsafeGetTensorImpl();
            } else {
              call->lazy.emplace(
                  stub.unsafeGetTensorImpl(),
                  LazyArgument{fill->value, LazyView::of(tensor)});
            }
            return stub;
          }));
    }
    if (op_.hasTag(at::Tag::nondeterministic_seeded)) {
      const c10::IValue* generator = generator_argument();
      if (generator == nullptr) {
        fail("draws random numbers in a way that cannot be deferred");
      }
      call->random = next_random(generator);
    }
    return call;
  }

  /// Handles an operator that writes to one lazy tensor: records a new value of
  /// its storage.
  void record_write() {
    if (written_arguments_ != 1 || replaces_storage(op_)) {
      fail("writes to a lazy tensor in a way that cannot be deferred");
    }
    const at::Tensor target = arguments()[written_].toTensor();
    if (target.numel() > 0) {
      record_new_value(target);
    }
    torch::jit::drop(stack_, op_.schema().arguments().size());
    if (!op_.schema().returns().empty()) {
      torch::jit::push(stack_, target);
    }
  }

  void record_new_value(const at::Tensor& target) {
    LazyFill& fill = *lazy_fill(target);
    auto value =
        std::make_shared<LazyValue>(fill.value->numel, fill.value->dtype);
    value->previous = fill.value;
    value->view = LazyView::of(target);
    const auto values = arguments();
    const bool by_scalar = values.size() > 1 && values[1].isScalar();
    if (target.scalar_type() != value->dtype) {
      fail("writes to a lazy tensor as another dtype");
    }
    if (name_ == "aten::zero_" || (name_ == "aten::fill_" && by_scalar)) {
      value->kind = LazyValue::Kind::kFill;
      value->first =
          name_ == "aten::zero_" ? at::Scalar(0) : values[1].toScalar();
    } else if (name_ == "aten::uniform_" || name_ == "aten::normal_") {
      value->kind = name_ == "aten::uniform_" ? LazyValue::Kind::kUniform
                                              : LazyValue::Kind::kNormal;
      value->first = values[1].toDouble();
      value->second = values[2].toDouble();
      value->random = next_random(&values[3]);
    } else {
      value->kind = LazyValue::Kind::kWrite;
      value->call = capture(written_);
    }
    finish(*value);
    fill.value = std::move(value);
  }

  /// Handles an operator that returns new tensors: makes lazy ones if their
  /// sizes and dtypes can be determined without values.
  bool record_result() {
    const auto call = capture(std::nullopt);
    Stack outputs;
    {
      const NotRecorded not_recorded;
      const c10::NoGradGuard no_grad;
      for (const c10::IValue& argument : call->arguments) {
        outputs.push_back(map_tensors(argument, [](const at::Tensor& tensor) {
          return tensor.is_meta() || tensor.dim() == 0 ? tensor
                                                       : stand_in(tensor);
        }));
      }
      try {
        op_.callBoxed(outputs);
      } catch (const std::exception&) {
        return false;
      }
    }
    for (const c10::IValue& output : outputs) {
      if (!output.toTensor().defined() || !output.toTensor().is_meta()) {
        return false;
      }
    }
    // Small results and those that are not floating-point are likely to be read
    // by the constructor. Random ones wait for the seed.
    if (!is_random_ && lazy_numel_ <= recording_.options.max_read_numel &&
        std::any_of(outputs.begin(), outputs.end(), [this](const auto& output) {
          return !is_deferrable(output.toTensor().scalar_type()) ||
                 output.toTensor().numel() < recording_.options.min_numel;
        })) {
      return false;
    }
    torch::jit::drop(stack_, op_.schema().arguments().size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor meta = outputs[i].toTensor();
      auto value = value_of(meta);
      value->kind = LazyValue::Kind::kResult;
      value->call = call;
      value->output = i;
      value->view = LazyView::of(meta);
      finish(*value);
      torch::jit::push(stack_, lazy_like(meta, device_, std::move(value)));
    }
    return true;
  }

  /// Handles an operator whose result is needed immediately.
  void read_now() {
    if (lazy_numel_ > recording_.options.max_read_numel) {
      fail(
          "needs the values of " + std::to_string(lazy_numel_) +
          " elements that do not exist yet, more than "
          "LazyOptions::max_read_numel");
    }
    const NotRecorded not_recorded;
    const size_t count = op_.schema().arguments().size();
    for (size_t i = stack_.size() - count; i < stack_.size(); ++i) {
      stack_[i] = map_tensors(stack_[i], [](const at::Tensor& tensor) {
        const LazyFill* fill = lazy_fill(tensor);
        return fill == nullptr
                   ? tensor
                   : LazyView::of(tensor).in(make_full(fill->value));
      });
    }
    op_.callBoxed(stack_);
  }

  LazyRecording& recording_;
  const c10::OperatorHandle& op_;
  c10::DispatchKeySet keys_;
  Stack& stack_;
  const std::string& name_;
  /// Number of elements to compute for the arguments; -1: none is lazy.
  int64_t lazy_numel_ = -1;
  c10::Device device_{at::kCPU}; ///< of the lazy arguments
  bool is_random_ = false; ///< some lazy argument is
  bool writes_lazy_ = false;
  bool writes_real_ = false;
  int written_arguments_ = 0;
  size_t written_ = 0;
};

void on_operator(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    Stack* stack) {
  LazyRecording* recording = lazy_recording();
  if (recording == nullptr) {
    const NotRecorded not_recorded;
    op.callBoxed(stack);
    return;
  }
  Recorder(*recording, op, keys, *stack).serve();
}

void register_mode() {
  // Never destroyed, like the dispatcher.
  static auto* library =
      new torch::Library(torch::Library::IMPL, "_", kMode, __FILE__, __LINE__);
  try {
    library->fallback(
        torch::CppFunction::makeFromBoxedFunction<&on_operator>());
  } catch (const c10::Error& error) {
    TESSERA_FAIL(
        "lazy: another library in this process has taken the dispatch key TESTING_ONLY_GenericMode (two copies of Tessera?): {}",
        error.what_without_backtrace());
  }
}

} // namespace

LazyRecording*& lazy_recording() {
  static thread_local LazyRecording* recording = nullptr;
  return recording;
}

void ensure_recording_mode_registered() {
  static std::once_flag once;
  std::call_once(once, register_mode);
}

LazyFill* lazy_fill(const c10::StorageImpl& storage) {
  DeferredInit* init = deferred_init(storage);
  return init == nullptr ? nullptr : init->fill.target<LazyFill>();
}

LazyFill* lazy_fill(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage()
             ? lazy_fill(*tensor.storage().unsafeGetStorageImpl())
             : nullptr;
}

} // namespace tessera::sharding

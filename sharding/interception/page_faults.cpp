// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/interception/page_faults.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/argument_casts.h"
#include "tessera/sharding/interception/gradient_token.h"
#include "tessera/sharding/interception/operator_traits.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/interception/paged_storage.h"
#include "tessera/sharding/interception/recompute_scope.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>

namespace tessera::sharding {

namespace {

// The self-test of register_and_test() learns from it that its operators come
// here. Only looked at once it is over, so that threads do not share a line of
// cache that is written.
std::atomic<bool> self_test_is_over{false};
std::atomic<int> self_test_calls{0};

/// Paged tensors and tokens among the arguments of one call.
struct PagedArguments {
  c10::SmallVector<PageAccess, 8> accesses;
  GradientTokenInfo* token = nullptr;
  size_t token_argument = 0;

  void look_at(const at::Tensor& tensor, bool is_write, size_t argument) {
    if (!tensor.defined() || !has_page_key(tensor) || !tensor.has_storage()) {
      return;
    }
    if (auto* page =
            PagedStorage::of(tensor.storage().unsafeGetStorageImpl())) {
      accesses.push_back({page, is_write});
    } else if (auto* info = gradient_token_info(tensor)) {
      token = info;
      token_argument = argument;
    }
  }
};

PagedArguments find_paged_arguments(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> arguments) {
  PagedArguments found;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (!value.isTensor() && !value.isList()) {
      continue;
    }
    const auto* alias = schema.arguments()[i].alias_info();
    const bool is_write = alias != nullptr && alias->isWrite();
    if (value.isTensor()) {
      found.look_at(value.toTensor(), is_write, i);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        found.look_at(tensor, is_write, i);
      }
    } else {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) {
          found.look_at(item.toTensor(), is_write, i);
        }
      }
    }
  }
  return found;
}

/// Handles an operator on a gradient token. Returns true if the call is
/// complete.
bool serve_token(
    const c10::OperatorHandle& op,
    OperatorKind kind,
    const PagedArguments& found,
    torch::jit::Stack& stack) {
  GradientTokenInfo& info = *found.token;
  const size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(stack, count);
  if (kind == OperatorKind::kMetadata) {
    return false;
  }
  // Outside of backward the result of `gradient + x` belongs to the user.
  const bool is_accumulation = kind == OperatorKind::kInplaceAdd ||
                               (kind == OperatorKind::kAdd && in_backward());
  if (is_accumulation && found.token_argument == 0 && count == 3 &&
      arguments[1].isTensor()) {
    const c10::IValue token = arguments[0];
    const at::Tensor gradient = arguments[1].toTensor();
    const at::Scalar alpha = arguments[2].toScalar();
    info.handler->on_token_add(
        info.parameter, alpha.equal(1) ? gradient : gradient.mul(alpha));
    torch::jit::drop(stack, count);
    torch::jit::push(stack, token);
    return true;
  }
  if (kind == OperatorKind::kInplaceZero) {
    info.handler->on_token_zero(info.parameter);
    return true; // its only argument is its result
  }
  TESSERA_FAIL(
      "the gradient of '{}' is divided over the ranks and {} cannot use it. Use engine.step() instead of an optimizer of torch, engine.clip_grad_norm() to clip, precision.parameters=float16 or loss_scale instead of a GradScaler, engine.grad() to read. What reads p.grad itself between steps, as PEFT's AdaLoRA does: call it inside engine.gather(), with p.grad = the gradient that engine.grad(p) gave before.",
      info.parameter_name,
      op.schema().name());
}

/// The operators of the gather are none of a transform of torch.func that the
/// call is in, whose keys would wrap the tensors that they make: what has been
/// gathered outlives the transform.
c10::DispatchKeySet transform_keys() {
  return c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode,
       c10::DispatchKey::FuncTorchGradWrapper,
       c10::DispatchKey::FuncTorchVmapMode,
       c10::DispatchKey::FuncTorchBatched});
}

/// Every handler gets all its pages at once, so that none is evicted to make
/// room for another.
void bring_in(const PagedArguments& found, const c10::OperatorHandle& op) {
  const c10::impl::ExcludeDispatchKeyGuard guard{transform_keys()};
  const char* name = op.schema().name().c_str();
  const auto handler_of = [](const PageAccess& access) {
    return access.storage->page().handler;
  };
  c10::SmallVector<PageFaultHandler*, 2> handlers; // almost always one
  for (const PageAccess& access : found.accesses) {
    if (std::find(handlers.begin(), handlers.end(), handler_of(access)) ==
        handlers.end()) {
      handlers.push_back(handler_of(access));
    }
  }
  if (handlers.size() == 1) {
    handlers[0]->on_access(found.accesses, name);
    return;
  }
  for (PageFaultHandler* handler : handlers) {
    c10::SmallVector<PageAccess, 8> local;
    std::copy_if(
        found.accesses.begin(),
        found.accesses.end(),
        std::back_inserter(local),
        [&](const auto& access) { return handler_of(access) == handler; });
    handler->on_access(local, name);
  }
}

/// Returns the dtype in which an operator on these parameters computes, or none
/// if nothing is to be converted: in backward, tensors have the dtypes that
/// forward left, and where parameters of two dtypes meet, LibTorch's own
/// promotion applies.
std::optional<at::ScalarType> compute_dtype(const PagedArguments& found) {
  if (in_backward() && !at::GradMode::is_enabled()) {
    return std::nullopt;
  }
  std::optional<at::ScalarType> dtype;
  for (const PageAccess& access : found.accesses) {
    const auto& local = access.storage->page().compute_dtype;
    if (!local || (dtype && *dtype != *local)) {
      return std::nullopt;
    }
    dtype = local;
  }
  return dtype;
}

/// While it lives, autocast keeps no casts on this thread. Those of weights it
/// would keep until the outermost autocast region ends: a second model, and
/// after a step casts of the weights before it. The flag is the thread's, so it
/// is set around the operators that use a weight, on whichever thread they run.
class UncachedCasts {
 public:
  UncachedCasts() : was_enabled_(at::autocast::is_autocast_cache_enabled()) {
    if (was_enabled_) {
      at::autocast::set_autocast_cache_enabled(false);
    }
  }
  ~UncachedCasts() {
    if (was_enabled_) {
      at::autocast::set_autocast_cache_enabled(true);
    }
  }
  UncachedCasts(const UncachedCasts&) = delete;
  UncachedCasts& operator=(const UncachedCasts&) = delete;

 private:
  bool was_enabled_;
};

void page_fallback(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
  if (!self_test_is_over.load(std::memory_order_relaxed)) [[unlikely]] {
    ++self_test_calls;
  }
  const auto arguments =
      torch::jit::last(*stack, op.schema().arguments().size());
  const PagedArguments found = find_paged_arguments(op.schema(), arguments);
  std::optional<at::ScalarType> results_in;
  std::optional<UncachedCasts> uncached;
  if (!found.accesses.empty() || found.token != nullptr) {
    const OperatorKind kind = kind_of(op);
    if (found.token != nullptr && serve_token(op, kind, found, *stack)) {
      return;
    }
    if (kind == OperatorKind::kMetadata) {
      for (const PageAccess& access : found.accesses) {
        if (access.storage->forbids_reads()) {
          access.storage->page().handler->on_view(*access.storage);
        }
      }
    } else if (!found.accesses.empty()) {
      bring_in(found, op);
      uncached.emplace();
      if (const auto dtype = compute_dtype(found)) {
        const c10::impl::ExcludeDispatchKeyGuard guard{
            c10::DispatchKeySet{kPageKey}};
        if (call_mixed_norm(op, *dtype, *stack)) {
          return;
        }
        results_in = cast_arguments(op, *dtype, *stack);
      }
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet{kPageKey}};
  op.callBoxed(stack);
  if (results_in) {
    cast_activation(op, *results_in, *stack);
  }
}

void register_and_test() {
  // Never destroyed: tensors with the key may outlive every engine.
  static auto* library = new torch::Library(
      torch::Library::IMPL, "_", kPageKey, __FILE__, __LINE__);
  try {
    library->fallback(
        torch::CppFunction::makeFromBoxedFunction<&page_fallback>());
  } catch (const c10::Error& error) {
    TESSERA_FAIL(
        "wrap: another library in this process has taken the dispatch key TESTING_ONLY_GenericWrapper (two copies of Tessera?): {}",
        error.what_without_backtrace());
  }
  const at::Tensor probe = at::ones({2});
  add_page_key(probe);
  const int before = self_test_calls;
  const at::Tensor sum = probe + probe.view({2});
  TESSERA_CHECK(
      self_test_calls > before && sum.sum().item<float>() == 4.0F,
      "wrap: operators on a keyed tensor do not reach Tessera with this LibTorch ({}). Use the version in scripts/requirements/torch.txt.",
      TORCH_VERSION);
  self_test_is_over = true;
}

} // namespace

void ensure_page_key_registered() {
  static std::once_flag once;
  std::call_once(once, register_and_test);
}

} // namespace tessera::sharding

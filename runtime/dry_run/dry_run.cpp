// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/dry_run/dry_run.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/cuda_operators.h"
#include "tessera/runtime/dry_run/dry_call.h"
#include "tessera/runtime/dry_run/engine_reads.h"
#include "tessera/runtime/dry_run/measured_call.h"
#include "tessera/runtime/memory/cpu_product_memory.h"
#include "tessera/runtime/memory/product_padding.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/runtime/profile/flop_counter.h"
#include "tessera/runtime/profile/operator_bytes.h"
#include "tessera/runtime/profile/operator_flops.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/SparseTensorUtils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

// Of the OpenMP library that LibTorch uses; both are of the calling thread.
extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int count);
}

namespace tessera::runtime {

namespace dry_operator {

namespace {

constexpr auto kDryKey = c10::DispatchKey::Fake;

// Operators on tensors with values compute if what they read and make is at
// most this.
constexpr size_t kMostComputedBytes = size_t{32} << 20;

DryRun*& current_run() {
  static thread_local DryRun* current = nullptr;
  return current;
}

/// EngineReads that live on this thread.
int& engine_reads() {
  static thread_local int count = 0;
  return count;
}

enum class OperatorWay {
  kRun, ///< it reads and writes no elements
  kCompose, ///< its kernel calls operators, which are seen here again
  kOwnKernel, ///< likewise, but counts as one
  kShape, ///< one of ours
  kInPlace, ///< it writes to arguments and makes nothing
  kMeta, ///< LibTorch's Meta kernel
  kMeasure, ///< its own kernel, see [Note: measured operators]
  kRead, ///< it tells the program a value
};

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty()
             ? schema.name()
             : schema.name() + "." + schema.overload_name();
}

bool returns_written_arguments(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() &&
         std::all_of(
             schema.returns().begin(),
             schema.returns().end(),
             [](const c10::Argument& result) {
               return result.alias_info() != nullptr &&
                      result.alias_info()->isWrite();
             });
}

/// Whether an operator writes an argument whose former values it does not read.
bool only_writes(const c10::FunctionSchema& schema, size_t argument) {
  static const std::unordered_set<std::string> kFilling = {
      "aten::zero_", "aten::fill_", "aten::copy_"};
  return schema.arguments()[argument].is_out() ||
         (argument == 0 && kFilling.count(schema.name()) > 0);
}

bool is_random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

bool is_view(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() &&
         std::all_of(
             schema.returns().begin(),
             schema.returns().end(),
             [](const c10::Argument& result) {
               return result.alias_info() != nullptr &&
                      !result.alias_info()->isWrite();
             });
}

bool takes_out(const c10::FunctionSchema& schema) {
  return std::any_of(
      schema.arguments().begin(),
      schema.arguments().end(),
      [](const c10::Argument& argument) { return argument.is_out(); });
}

/// Operators whose kernels for the CPU consist of other operators and loops,
/// and which are one kernel on CUDA.
bool is_own_kernel(const std::string& name) {
  return name == "tessera::gated_activation" ||
         name == "tessera::gated_activation_backward" ||
         name == "tessera::mixed_norm" ||
         name == "tessera::mixed_norm_backward" ||
         name == "tessera::pattern_attention" ||
         name == "tessera::pattern_attention_backward" ||
         name == "tessera::residual_norm" ||
         name == "tessera::residual_norm_backward" ||
         name == "tessera::rotate_heads";
}

OperatorWay way_of(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> kRunning = {
      "aten::empty.memory_format",
      "aten::empty_strided",
      "aten::resize_",
      "aten::set_.source_Storage",
      "aten::set_.source_Storage_storage_offset",
      "aten::set_.source_Tensor",
      "aten::set_",
      "aten::_fused_sdp_choice",
      "aten::record_stream",
      "aten::is_pinned",
      "aten::_is_pinned",
      "aten::as_strided_",
      "aten::t_",
      "aten::transpose_",
      "aten::squeeze_",
      "aten::squeeze_.dim",
      "aten::unsqueeze_",
      "aten::detach_",
      "aten::set_data",
  };
  static const std::unordered_set<std::string> kReading = {
      "aten::_local_scalar_dense",
      "aten::equal",
      "aten::is_nonzero",
  };
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = full_name(schema);
  if (is_always_measured(name)) {
    return OperatorWay::kMeasure;
  }
  if (dry_shapes().count(name) > 0) {
    return OperatorWay::kShape;
  }
  if (kRunning.count(name) > 0 || is_view(schema)) {
    return OperatorWay::kRun;
  }
  if (kReading.count(name) > 0) {
    return OperatorWay::kRead;
  }
  const bool has_cpu = op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (name == "aten::copy_") { // composed by name only
    return OperatorWay::kInPlace;
  }
  if (is_own_kernel(name)) {
    return OperatorWay::kOwnKernel;
  }
  if (!has_cpu) {
    return OperatorWay::kCompose;
  }
  if (returns_written_arguments(schema) && !takes_out(schema)) {
    return OperatorWay::kInPlace;
  }
  if (op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return OperatorWay::kMeta;
  }
  return schema.returns().empty() || takes_out(schema) ? OperatorWay::kInPlace
                                                       : OperatorWay::kMeasure;
}

OperatorWay cached_way(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<c10::OperatorName, OperatorWay> ways;
  const auto [found, is_new] =
      ways.try_emplace(op.operator_name(), OperatorWay::kRun);
  if (is_new) {
    found->second = way_of(op);
  }
  return found->second;
}

const void* data_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().data() : nullptr;
}

const void* begin_of(const at::Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(data_of(tensor));
  return data == nullptr ? nullptr
                         : data + tensor.storage_offset() *
                                      static_cast<int64_t>(tensor.itemsize());
}

bool has_values(const at::Tensor& tensor) {
  if (tensor.layout() == at::kSparse) {
    const auto* sparse = at::sparse::get_sparse_impl(tensor);
    return has_values(sparse->indices()) && has_values(sparse->values());
  }
  return tensor.layout() != at::kStrided || tensor.numel() == 0 ||
         has_dry_values(data_of(tensor));
}

size_t bytes_of(const at::Tensor& tensor) {
  if (tensor.layout() == at::kSparse) {
    const auto* sparse = at::sparse::get_sparse_impl(tensor);
    return sparse->indices().nbytes() + sparse->values().nbytes();
  }
  return tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
}

/// What LibTorch's Meta kernel gets in place of a tensor. A number stays one:
/// Meta kernels that are written in Python ask for its value.
at::Tensor shape_of(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return tensor;
  }
  return at::Tensor(at::detail::empty_strided_meta(
      tensor.sizes(), tensor.strides(), tensor.scalar_type()));
}

template <typename Map>
c10::IValue mapped(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(map(value.toTensor()))
                                      : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) {
      list.push_back(map(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor :
         value.toOptionalTensorList()) {
      list.push_back(
          tensor && tensor->defined() ? std::optional<at::Tensor>(map(*tensor))
                                      : tensor);
    }
    return list;
  }
  return value;
}

/// While it lives, what this thread computes is on no other: it is small, and
/// the threads of a team wait for their next work by using the processor. Not
/// for a whole dry run, as LibTorch chooses operators by the number of threads.
class OneThread {
 public:
  OneThread() {
    omp_set_num_threads(1);
  }
  ~OneThread() {
    omp_set_num_threads(threads_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_ = omp_get_max_threads();
};

/// One call of an operator.
class DryOperator {
 public:
  DryOperator(
      DryRun& run,
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack& stack)
      : run_(run),
        op_(op),
        keys_(
            keys &
            c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDryKey)),
        stack_(stack),
        call_(op, stack) {}

  void serve() {
    const OperatorWay way = cached_way(op_);
    if (way != OperatorWay::kRun && way != OperatorWay::kCompose) {
      begin();
    }
    switch (way) {
      case OperatorWay::kRun:
        run();
        return;
      case OperatorWay::kCompose:
        op_.redispatchBoxed(keys_, &stack_);
        return;
      case OperatorWay::kOwnKernel:
        compose_one();
        break;
      case OperatorWay::kRead:
        read();
        return;
      case OperatorWay::kShape:
      case OperatorWay::kInPlace:
      case OperatorWay::kMeta:
      case OperatorWay::kMeasure:
        make_results(way);
        break;
    }
    finish();
  }

 private:
  void run() {
    const c10::impl::ExcludeDispatchKeyGuard guard{
        c10::DispatchKeySet{kDryKey}};
    op_.redispatchBoxed(keys_, &stack_);
    // New numbers have none, however few they are.
    if (call_.name() == "aten::empty" ||
        call_.name() == "aten::empty_strided") {
      const at::Tensor made = torch::jit::peek(stack_, 0, 1).toTensor();
      if (made.is_floating_point() && made.numel() > 0) {
        set_dry_values(data_of(made), false);
      }
    }
  }

  void make_results(OperatorWay way) {
    const std::vector<size_t> shaping = shaping_arguments(op_, call_);
    if (is_sparse_) {
      compute_sparse();
    } else if (!shaping.empty()) {
      check_values(shaping);
      if (is_small_) {
        compute();
      } else if (returns_written_arguments(op_.schema())) {
        make_room();
        return_written();
      } else {
        measure();
      }
    } else if (is_small_ && way != OperatorWay::kMeta && !is_large_zero()) {
      compute();
    } else if (way == OperatorWay::kShape) {
      by_shape();
    } else if (way == OperatorWay::kInPlace) {
      in_place();
    } else if (way == OperatorWay::kMeta) {
      by_meta();
    } else if (full_name(op_.schema()) == "aten::repeat_interleave.Tensor") {
      by_output_size();
    } else {
      measure();
    }
  }

  /// repeat_interleave() with the number of its results.
  void by_output_size() {
    const c10::impl::ExcludeDispatchKeyGuard guard{
        c10::DispatchKeySet{kDryKey}};
    const at::Tensor repeats = call_.tensor(0);
    const at::Tensor sums =
        at::empty(repeats.sizes(), repeats.options().dtype(at::kLong));
    call_.replace_by(
        without_values({at::empty({call_.integer(1)}, repeats.options())}));
  }

  void by_shape() {
    const c10::impl::ExcludeDispatchKeyGuard guard{
        c10::DispatchKeySet{kDryKey}};
    call_.replace_by(
        without_values(dry_shapes().at(full_name(op_.schema()))(call_)));
  }

  /// See [Note: measured operators].
  void measure() {
    const std::string name = full_name(op_.schema());
    const bool has_shape = dry_shapes().count(name) > 0;
    // There, other kernels run.
    if (has_shape && run_.target() != c10::kCPU) {
      by_shape();
      return;
    }
    if (!has_shape) {
      call_.replace_by(without_values(measured(call_)));
      return;
    }
    std::optional<std::vector<c10::IValue>> results = try_measuring(call_);
    if (results) {
      call_.replace_by(without_values(std::move(*results)));
      return;
    }
    run_.assume(
        name + " takes no temporary memory in '" + run_.module() +
        "': its arguments are too large to try");
    by_shape();
  }

  std::optional<std::vector<c10::IValue>> try_measuring(const DryCall& call) {
    std::string problem;
    try {
      const c10::impl::ExcludeDispatchKeyGuard guard{
          c10::DispatchKeySet{kDryKey}};
      return measured_results(op_, keys_, call);
    } catch (const c10::Error& error) {
      problem = error.what_without_backtrace();
    } catch (const std::exception& error) { // of an operator of others
      problem = error.what();
    }
    TESSERA_FAIL(
        "a dry run could not find the results of {} ({}): {}",
        full_name(op_.schema()),
        place_in_model(run_.module()),
        problem);
  }

  std::vector<c10::IValue> measured(const DryCall& call) {
    bool reads_zeros = false;
    call.for_each_tensor([&](const at::Tensor& tensor, size_t i) {
      reads_zeros =
          reads_zeros || (!only_writes(op_.schema(), i) && !has_values(tensor));
    });
    // LibTorch's say whether their shapes depend on values; see
    // shaping_arguments().
    if (reads_zeros && !call.name().starts_with("aten::")) {
      run_.assume(
          full_name(op_.schema()) + " has in '" + run_.module() +
          "' results of the shapes that zeros give");
    }
    std::optional<std::vector<c10::IValue>> results = try_measuring(call);
    TESSERA_CHECK(
        results.has_value(),
        "a dry run finds the results of {} ({}) by running it, and these arguments are too large for that; plan with a smaller batch or shorter sequences, or measure a real step.",
        full_name(op_.schema()),
        place_in_model(run_.module()));
    return std::move(*results);
  }

  /// Only values say how large the results are.
  void check_values(const std::vector<size_t>& shaping) {
    call_.for_each_tensor([&](const at::Tensor& tensor, size_t i) {
      TESSERA_CHECK(
          std::find(shaping.begin(), shaping.end(), i) == shaping.end() ||
              has_values(tensor),
          "a dry run has shapes only, and the shape of the result of {} ({}) depends on the values of its argument '{}', of shape {}. If these are a part of the batch, make the batch before the plan: what exists before keeps its values. Else use a fixed shape: torch::where, masked_fill or a weight of zero in place of a selection; or measure a real step (torch::nonzero, masks as indices, unique).",
          full_name(op_.schema()),
          place_in_model(run_.module()),
          op_.schema().arguments()[i].name(),
          formatted_sizes(tensor.sizes()));
    });
  }

  static std::string formatted_sizes(at::IntArrayRef sizes) {
    std::ostringstream text;
    text << sizes;
    return text.str();
  }

  /// Looks at the arguments.
  void begin() {
    bool all_values = !is_random(op_);
    size_t bytes = 0;
    call_.for_each_tensor([&](const at::Tensor& tensor, size_t i) {
      all_values =
          all_values && (only_writes(op_.schema(), i) || has_values(tensor));
      bytes += bytes_of(tensor);
      is_sparse_ = is_sparse_ || tensor.layout() != at::kStrided;
      if (tensor.has_storage()) {
        run_.begin_operator(
            call_.name(), tensor.storage().unsafeGetStorageImpl());
      }
    });
    is_small_ = all_values && bytes <= kMostComputedBytes;
    count_arguments();
  }

  /// Zeros of a large tensor of numbers have no meaning, like new ones: to
  /// write them would take pages of the system, in every layer.
  bool is_large_zero() const {
    constexpr size_t kLargest = size_t{64} << 10;
    if (call_.name() != "aten::zero_") {
      return false;
    }
    const at::Tensor tensor = call_.tensor(0);
    return tensor.is_floating_point() && tensor.nbytes() > kLargest &&
           is_dry_memory(data_of(tensor));
  }

  void count_arguments() {
    work_.name = call_.name();
    const OperatorFlops flops = operator_flops(call_.name(), call_.arguments());
    work_.flops = flops.all;
    work_.repeated_flops = is_recomputing() ? flops.all : flops.repeated;
    work_.masked_flops = flops.masked;
    arguments_.assign(call_.count(), 0);
    std::vector<std::pair<const void*, double>> read; // each once
    bool knows_dtype = false;
    bool writes_device = false;
    bool writes_host = false;
    bool reads_host = false;
    call_.for_each_tensor([&](const at::Tensor& tensor, size_t i) {
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        return; // an argument of the kernel
      }
      const double bytes = bytes_in_memory(tensor);
      arguments_[i] += bytes;
      if (!knows_dtype && tensor.is_floating_point()) {
        work_.dtype = tensor.scalar_type();
        knows_dtype = true;
      }
      const bool is_on_host = is_uncounted_dry_memory(data_of(tensor));
      if (call_.writes(i)) {
        bytes_.written += bytes;
        (is_on_host ? writes_host : writes_device) = true;
      }
      if (!only_writes(op_.schema(), i)) {
        reads_host = reads_host || is_on_host;
        const std::pair<const void*, double> local{begin_of(tensor), bytes};
        if (std::find(read.begin(), read.end(), local) == read.end()) {
          read.push_back(local);
          bytes_.read += bytes;
        }
      }
    });
    if (call_.name() == "aten::copy_" && reads_host != writes_host) {
      work_.place = writes_host ? WorkPlace::kToHost : WorkPlace::kToDevice;
    } else if (writes_host && !writes_device) {
      work_.place = WorkPlace::kHost;
    }
  }

  void finish() {
    const auto& returns = op_.schema().returns();
    for (size_t i = 0; i < returns.size(); ++i) {
      const c10::IValue& result = torch::jit::peek(stack_, i, returns.size());
      if (returns[i].alias_info() != nullptr) {
        continue;
      }
      if (result.isTensor()) {
        bytes_.made += bytes_in_memory(result.toTensor());
      } else if (result.isTensorList()) {
        for (const at::Tensor& tensor : result.toTensorList()) {
          bytes_.made += bytes_in_memory(tensor);
        }
      }
    }
    work_.bytes =
        work_.place == WorkPlace::kToHost || work_.place == WorkPlace::kToDevice
            ? bytes_.read
            : operator_bytes(call_.name(), arguments_, bytes_);
    run_.add_work(work_);
  }

  void compute() {
    call_.for_each_tensor([&](const at::Tensor& tensor, size_t i) {
      if (call_.writes(i) && tensor.has_storage() &&
          (has_values(tensor) ||
           (only_writes(op_.schema(), i) &&
            tensor.nbytes() == tensor.storage().nbytes()))) {
        set_dry_values(data_of(tensor), true); // it is written
      }
    });
    const DryValues values;
    const OneThread one;
    op_.redispatchBoxed(keys_, &stack_);
  }

  /// Kernels of sparse tensors read the indices: zero where they have no
  /// values.
  void compute_sparse() {
    const bool has_all = is_small_;
    if (!has_all) {
      run_.assume(
          full_name(op_.schema()) + " of sparse tensors read zero in '" +
          run_.module() + "'");
    }
    compute();
    if (!has_all) {
      for (size_t i = 0; i < op_.schema().returns().size(); ++i) {
        without_values(
            {torch::jit::peek(stack_, i, op_.schema().returns().size())});
      }
    }
  }

  /// What the kernel calls does not count.
  void compose_one() {
    const DryKernel one(call_.name().c_str());
    op_.redispatchBoxed(keys_, &stack_);
  }

  /// The program wants to know a value: zero if there is none.
  void read() {
    bool all_values = true;
    call_.for_each_tensor([&](const at::Tensor& tensor, size_t) {
      all_values = all_values && has_values(tensor);
    });
    if (!all_values && engine_reads() == 0) {
      run_.assume(
          full_name(op_.schema()) + " read zero in '" + run_.module() + "'");
    }
    const c10::impl::ExcludeDispatchKeyGuard guard{
        c10::DispatchKeySet{kDryKey}};
    if (!all_values && call_.name() == "aten::equal") {
      call_.replace_by({true});
      return;
    }
    op_.redispatchBoxed(keys_, &stack_);
  }

  /// Results that are arguments.
  std::vector<c10::IValue> written() const {
    std::vector<c10::IValue> results;
    for (const c10::Argument& result : op_.schema().returns()) {
      for (size_t i = 0; i < call_.count(); ++i) {
        const auto* alias = op_.schema().arguments()[i].alias_info();
        if (alias != nullptr && result.alias_info() != nullptr &&
            *alias == *result.alias_info()) {
          results.push_back(call_.argument(i));
        }
      }
    }
    return results;
  }

  void forget_written() {
    call_.for_each_tensor([&](const at::Tensor& tensor, size_t i) {
      if (call_.writes(i)) {
        set_dry_values(data_of(tensor), false);
      }
    });
  }

  /// Operators without Meta kernel resize what they are given for their result,
  /// where it is empty.
  void make_room() {
    bool is_missing = false;
    std::vector<int64_t> sizes;
    call_.for_each_tensor([&](const at::Tensor& tensor, size_t argument) {
      if (op_.schema().arguments()[argument].is_out()) {
        is_missing = is_missing || tensor.numel() == 0;
      } else if (op_.hasTag(at::Tag::pointwise)) {
        sizes = at::infer_size(sizes, tensor.sizes());
      }
    });
    if (!is_missing) {
      return;
    }
    if (op_.hasTag(at::Tag::pointwise)) {
      call_.for_each_tensor([&](const at::Tensor& tensor, size_t argument) {
        if (op_.schema().arguments()[argument].is_out()) {
          tensor.resize_(sizes);
        }
      });
      return;
    }
    // Those that were given would keep the memory of a trial.
    torch::jit::Stack trial = call_.arguments().vec();
    for (size_t i = 0; i < call_.count(); ++i) {
      if (op_.schema().arguments()[i].is_out()) {
        trial[i] = at::empty({0}, call_.tensor(i).options());
      }
    }
    std::vector<std::vector<int64_t>> made;
    for (const c10::IValue& result : measured(DryCall(op_, trial))) {
      made.push_back(result.toTensor().sizes().vec());
    }
    const std::vector<c10::IValue> results = written();
    for (size_t i = 0; i < results.size(); ++i) {
      results[i].toTensor().resize_(made[i]);
    }
  }

  void return_written() {
    forget_written();
    call_.replace_by(written());
  }

  /// What the kernels of the device take beside the results.
  std::vector<at::Tensor> temporary_memory() const {
    const std::string& name = call_.name();
    const bool is_sum = name.starts_with("aten::addmm") || // addmm_ too
                        name.starts_with("aten::baddbmm");
    const bool is_batch =
        name == "aten::bmm" || name.starts_with("aten::baddbmm");
    if (!is_sum && !is_batch && name != "aten::mm") {
      return {};
    }
    const bool is_addmm_ = name == "aten::addmm_";
    const size_t first = is_sum ? 1 : 0;
    const at::Tensor a = call_.tensor(first);
    const at::Tensor b = call_.tensor(first + 1);
    const bool writes = returns_written_arguments(op_.schema());
    if (run_.target() == c10::kCPU) {
      if (const int64_t bytes = product_working_bytes(a, b); bytes > 0) {
        return {at::empty({bytes}, at::kByte)};
      }
    }
    if (is_batch) {
      return {};
    }
    if (run_.target() == c10::kCPU) {
      return cpu_product_memory(
          a,
          b,
          is_addmm_ ? ProductUse::kAdded
          : writes  ? ProductUse::kWritten
                    : ProductUse::kNew);
    }
    return writes || !plans_padded_products() ? std::vector<at::Tensor>()
                                              : padded_memory(a, b);
  }

  void in_place() {
    make_room();
    const c10::impl::ExcludeDispatchKeyGuard guard{
        c10::DispatchKeySet{kDryKey}};
    const std::vector<at::Tensor> temporary = temporary_memory();
    return_written();
  }

  void by_meta() {
    const c10::impl::ExcludeDispatchKeyGuard guard{
        c10::DispatchKeySet{kDryKey}};
    std::vector<at::Tensor> temporary = temporary_memory();
    torch::jit::Stack results;
    for (size_t i = 0; i < call_.count(); ++i) {
      c10::IValue value = mapped(call_.argument(i), shape_of);
      if (value.isDevice()) {
        value = c10::Device(at::kMeta);
      }
      results.push_back(std::move(value));
    }
    const torch::jit::Stack shapes = results;
    try {
      op_.redispatchBoxed(
          c10::DispatchKeySet(c10::DispatchKey::Meta), &results);
    } catch (const c10::NotImplementedError&) { // for this call
      measure();
      return;
    }
    if (is_small_ && bytes_of_all(results) <= kMostComputedBytes) {
      temporary.clear(); // the kernel takes it itself
      compute();
      return;
    }
    if (returns_written_arguments(op_.schema())) {
      resize_written(shapes);
      return_written();
      return;
    }
    for (c10::IValue& result : results) {
      result = mapped(result, [](const at::Tensor& meta) {
        return at::empty_strided(
            meta.sizes(),
            meta.strides(),
            at::device(at::kCPU).dtype(meta.scalar_type()));
      });
    }
    call_.replace_by(without_values(std::move(results)));
  }

  /// Small blocks begin with values.
  static std::vector<c10::IValue> without_values(
      std::vector<c10::IValue> results) {
    for (const c10::IValue& result : results) {
      mapped(result, [](const at::Tensor& tensor) {
        set_dry_values(data_of(tensor), false);
        return tensor;
      });
    }
    return results;
  }

  static size_t bytes_of_all(const torch::jit::Stack& values) {
    size_t bytes = 0;
    for (const c10::IValue& value : values) {
      if (value.isTensor() && value.toTensor().defined()) {
        bytes += bytes_of(value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorList()) {
          bytes += bytes_of(tensor);
        }
      }
    }
    return bytes;
  }

  /// Results that are given as arguments may have to be resized.
  void resize_written(const torch::jit::Stack& shapes) {
    for (size_t i = 0; i < call_.count(); ++i) {
      if (call_.writes(i) && call_.argument(i).isTensor()) {
        const at::Tensor tensor = call_.tensor(i);
        const at::Tensor shape = shapes[i].toTensor();
        if (tensor.sizes() != shape.sizes()) {
          tensor.resize_(shape.sizes());
        }
      }
    }
  }

  DryRun& run_;
  const c10::OperatorHandle& op_;
  c10::DispatchKeySet keys_; ///< below this key
  torch::jit::Stack& stack_;
  DryCall call_;
  bool is_small_ = false; ///< few values, all there
  bool is_sparse_ = false; ///< an argument is
  OperatorWork work_;
  std::vector<double> arguments_; ///< bytes; no tensors, which are counted
  CallBytes bytes_;
};

void dry_fallback(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  DryRun* run = DryRun::current();
  if (run == nullptr) {
    const c10::impl::ExcludeDispatchKeyGuard guard{
        c10::DispatchKeySet{kDryKey}};
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDryKey),
        stack);
    return;
  }
  DryOperator(*run, op, keys, *stack).serve();
}

void register_dry_key() {
  // Never destroyed, like the dispatcher.
  static auto* library = new torch::Library(
      torch::Library::IMPL, "_", kDryKey, __FILE__, __LINE__);
  try {
    library->fallback(
        torch::CppFunction::makeFromBoxedFunction<&dry_fallback>());
  } catch (const c10::Error& error) {
    TESSERA_FAIL(
        "dry run: another library in this process has taken the dispatch key Fake (two copies of Tessera?): {}",
        error.what_without_backtrace());
  }
}

} // namespace

} // namespace dry_operator

struct DryRun::Mode {
  explicit Mode(bool on_cuda)
      : key(c10::DispatchKeySet{dry_operator::kDryKey}) {
    if (on_cuda) {
      // The key is one of those that LibTorch excludes by default.
      const auto local = cuda_operators_key();
      const auto now = c10::impl::tls_local_dispatch_key_set();
      cuda.emplace(now.included_ | local, now.excluded_ - local);
    }
  }
  c10::impl::IncludeDispatchKeyGuard key;
  std::optional<c10::impl::ForceDispatchKeyGuard> cuda;
};

DryRun::DryRun(c10::DeviceType target)
    : target_(target), heap_(std::make_shared<DryHeap>()) {
  TESSERA_CHECK(
      target == c10::kCPU || target == c10::kCUDA,
      "dry run: a run on {} cannot be planned; the devices are cpu and cuda.",
      c10::DeviceTypeName(target, /*lower_case=*/true));
  TESSERA_CHECK(
      dry_operator::current_run() == nullptr,
      "dry run: this thread is in one already; end it first.");
  static std::once_flag once;
  std::call_once(once, dry_operator::register_dry_key);
  install_cpu_memory_counter();
  dry_allocation() = {heap_, false};
  dry_operator::current_run() = this;
  mode_ = std::make_unique<Mode>(target == c10::kCUDA);
}

DryRun::~DryRun() {
  mode_.reset();
  dry_operator::current_run() = nullptr;
  dry_allocation() = {};
  heap_->watch(nullptr);
}

DryRun* DryRun::current() {
  return dry_operator::current_run();
}

void DryRun::name_storage(const at::Tensor& tensor, std::string module) {
  modules_[tensor.storage().unsafeGetStorageImpl()] = std::move(module);
}

void DryRun::begin_operator(const std::string& name, const void* storage) {
  running_ = name;
  if (const auto found = modules_.find(storage); found != modules_.end()) {
    module_ = found->second;
  }
}

size_t DryRun::WorkRows::add(const std::string& key, const OperatorWork& work) {
  const auto [found, is_new] = row_indices.try_emplace(key, rows.size());
  if (is_new) {
    rows.push_back(work);
    rows.back().calls = 1;
    return found->second;
  }
  OperatorWork& row = rows[found->second];
  ++row.calls;
  row.flops += work.flops;
  row.bytes += work.bytes;
  row.repeated_flops += work.repeated_flops;
  row.masked_flops += work.masked_flops;
  return found->second;
}

namespace dry_operator {

namespace {

std::string row_key(const OperatorWork& work) {
  return work.module + " " + work.name + (work.in_backward ? " b" : " f") +
         std::to_string(static_cast<int>(work.place)) +
         std::to_string(static_cast<int>(work.dtype));
}

} // namespace

} // namespace dry_operator

void DryRun::add_work(const OperatorWork& work) {
  if (counted_as_one_ > 0) {
    return;
  }
  OperatorWork local = work;
  local.module = module_;
  local.in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  const size_t row = work_.add(dry_operator::row_key(local), local);
  calls_.push_back({.row = row, .is_kernel = false});
}

void DryRun::add_kernel(const OperatorWork& work) {
  if (counted_as_one_ > 0) {
    return;
  }
  OperatorWork local = work;
  local.in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  const size_t row = kernels_.add(dry_operator::row_key(local), local);
  calls_.push_back({.row = row, .is_kernel = true});
}

void DryRun::count_as_one(int change) {
  counted_as_one_ += change;
}

void DryRun::forget_work() {
  work_ = {};
  kernels_ = {};
  calls_.clear();
}

std::vector<OperatorWork> DryRun::work() const {
  return work_.rows;
}

std::vector<OperatorWork> DryRun::kernels() const {
  return kernels_.rows;
}

DryKernel::DryKernel(const char* name) : run_(DryRun::current()) {
  if (run_ != nullptr) {
    work_.name = name;
    run_->count_as_one(1);
  }
}

DryKernel::~DryKernel() {
  if (run_ == nullptr) {
    return;
  }
  run_->count_as_one(-1);
  const auto add = [this](WorkPlace place, double bytes) {
    if (bytes > 0) {
      work_.place = place;
      work_.bytes = bytes;
      run_->add_kernel(work_);
    }
  };
  // A kernel that writes nothing runs where what it reads is.
  if (!writes_host_ && read_of_device_ + written_of_device_ > 0) {
    add(WorkPlace::kDevice, work_.bytes);
    return;
  }
  add(WorkPlace::kHost, work_.bytes);
  add(WorkPlace::kToHost, read_of_device_);
  add(WorkPlace::kToDevice, written_of_device_);
}

void DryKernel::reads(const at::Tensor& tensor) {
  if (run_ != nullptr && tensor.defined() && !count(tensor)) {
    read_of_device_ += bytes_in_memory(tensor);
  }
}

void DryKernel::writes(const at::Tensor& tensor) {
  if (run_ == nullptr || !tensor.defined()) {
    return;
  }
  if (count(tensor)) {
    writes_host_ = true;
  } else {
    written_of_device_ += bytes_in_memory(tensor);
  }
}

bool DryKernel::count(const at::Tensor& tensor) {
  if (work_.bytes == 0) {
    work_.dtype = tensor.scalar_type();
  }
  work_.bytes += bytes_in_memory(tensor);
  return is_uncounted_dry_memory(dry_operator::data_of(tensor));
}

void DryRun::assume(std::string label) {
  assumptions_.insert(std::move(label));
}

EngineReads::EngineReads() {
  ++dry_operator::engine_reads();
}

EngineReads::~EngineReads() {
  --dry_operator::engine_reads();
}

bool computes_on_cpu(c10::Device device) {
  const DryRun* run = DryRun::current();
  return run == nullptr ? device.is_cpu() : run->target() == c10::kCPU;
}

struct DryValues::State {
  State()
      : key(c10::DispatchKeySet{dry_operator::kDryKey}),
        had(std::exchange(dry_allocation().has_values, true)) {}
  c10::impl::ExcludeDispatchKeyGuard key;
  bool had;
};

DryValues::DryValues() : state_(std::make_unique<State>()) {}

DryValues::~DryValues() {
  dry_allocation().has_values = state_->had;
}

} // namespace tessera::runtime

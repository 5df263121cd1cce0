// SPDX-License-Identifier: Apache-2.0
// Operators of the virtual device. One boxed fallback serves almost all: it
// takes the addresses of its arguments when it is called, as the launch of a
// kernel does, finds the sizes of its results by running the CPU's kernel on
// zeros, and appends the CPU's kernel on those addresses to the current stream.
#include "support/vdev/vdev.h"
#include "support/vdev/vdev_generator.h"
#include "support/vdev/vdev_kernels.h"
#include "support/vdev/vdev_memory.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/Resize.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <tuple>

namespace tessera::tests::vdev {

c10::Stream stream_of(const at::Tensor& tensor) {
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)
      ->getStream(tensor.device());
}

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

bool is_here(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

uintptr_t address_of(const at::Tensor& tensor) {
  const auto* data =
      static_cast<const char*>(tensor.storage().unsafeGetStorageImpl()->data());
  return reinterpret_cast<uintptr_t>(data) +
         static_cast<uintptr_t>(tensor.storage_offset()) * tensor.itemsize();
}

/// Appends the memory of a strided block, as few ranges as it takes.
void add_ranges(
    std::vector<Range>& ranges,
    uintptr_t begin,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    size_t item,
    int64_t budget) {
  int64_t last = 0;
  int64_t numel = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    last += (sizes[d] - 1) * strides[d];
    numel *= strides[d] == 0 ? 1 : sizes[d];
  }
  const bool is_dense = numel == last + 1;
  if (is_dense || budget < *std::max_element(sizes.begin(), sizes.end())) {
    ranges.push_back({begin, begin + static_cast<size_t>(last + 1) * item});
    return;
  }
  // Row by row of the dimension that strides furthest.
  const auto widest = static_cast<size_t>(
      std::max_element(strides.begin(), strides.end()) - strides.begin());
  std::vector<int64_t> inner_sizes(sizes.begin(), sizes.end());
  inner_sizes[widest] = 1;
  std::vector<int64_t> inner_strides(strides.begin(), strides.end());
  inner_strides[widest] = 0;
  for (int64_t i = 0; i < sizes[widest]; ++i) {
    add_ranges(
        ranges,
        begin + static_cast<size_t>(i * strides[widest]) * item,
        inner_sizes,
        inner_strides,
        item,
        budget / sizes[widest]);
  }
}

/// A CPU storage over memory that something else owns.
c10::Storage borrowed_storage(void* data, size_t bytes) {
  return {
      c10::Storage::use_byte_size_t{},
      bytes,
      c10::DataPtr(data, c10::kCPU),
      /*allocator=*/nullptr,
      /*resizable=*/false};
}

at::Tensor cpu_tensor(
    c10::Storage storage,
    caffe2::TypeMeta dtype,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

/// What a command knows of a tensor of the device.
struct Captured {
  void* storage = nullptr;
  size_t storage_bytes = 0;
  caffe2::TypeMeta dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;

  explicit Captured(const at::Tensor& tensor)
      : storage(tensor.storage().unsafeGetStorageImpl()->mutable_data()),
        storage_bytes(tensor.storage().nbytes()),
        dtype(tensor.dtype()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        offset(tensor.storage_offset()) {
    TORCH_CHECK(
        at::detail::computeStorageNbytes(
            sizes, strides, tensor.itemsize(), static_cast<size_t>(offset)) <=
            storage_bytes,
        "vdev: a tensor of sizes ",
        tensor.sizes(),
        " at ",
        offset,
        " exceeds its storage of ",
        storage_bytes,
        " bytes");
  }

  at::Tensor on_host() const {
    return cpu_tensor(
        borrowed_storage(storage, storage_bytes),
        dtype,
        sizes,
        strides,
        offset);
  }
};

void check_live(const at::Tensor& tensor, const std::string& name) {
  std::vector<Access> accesses;
  add_accesses(accesses, tensor, false);
  for (const Access& access : accesses) {
    if (!DeviceMemory::instance().is_live(access.range)) {
      const std::string text =
          name + " is issued with memory that has been freed";
      Runtime::instance().note_violation(text);
      TORCH_CHECK(false, text);
    }
  }
}

at::Tensor empty_like_on(const at::Tensor& like, c10::Device on) {
  return at::empty_strided(
      like.sizes(), like.strides(), like.options().device(on));
}

/// The call of an operator: its arguments by place.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), name_(op.schema().name()) {
    if (!op.schema().overload_name().empty()) {
      name_ += "." + op.schema().overload_name();
    }
    const size_t count = op.schema().arguments().size();
    arguments_.assign(
        stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    find_device();
  }

  void run() {
    const c10::DeviceGuard guard(device_);
    if (makes_views()) {
      run_on_metadata();
    } else if (needs_values()) {
      run_synchronously();
    } else {
      run_on_stream();
    }
  }

 private:
  using Replace = std::function<at::Tensor(const at::Tensor&, size_t argument)>;

  void find_device() {
    std::optional<c10::Device> found;
    for_each_tensor([&](const at::Tensor& tensor, size_t) {
      if (is_here(tensor) && !found) {
        found = tensor.device();
      }
    });
    for (const c10::IValue& argument : arguments_) {
      if (!found && argument.isDevice() &&
          argument.toDevice().type() == kType &&
          argument.toDevice().has_index()) {
        found = argument.toDevice();
      }
    }
    device_ = found.value_or(c10::impl::getDeviceGuardImpl(kType)->getDevice());
  }

  template <typename Use>
  void for_each_tensor(const Use& use) const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const c10::IValue& value = arguments_[i];
      if (value.isTensor()) {
        use(value.toTensor(), i);
      } else if (value.isList()) {
        for (const c10::IValue& item : value.toListRef()) {
          if (item.isTensor()) {
            use(item.toTensor(), i);
          }
        }
      }
    }
  }

  bool is_written(size_t argument) const {
    const auto* alias = op_.schema().arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  bool makes_views() const {
    const auto& returns = op_.schema().returns();
    return std::any_of(returns.begin(), returns.end(), [](const auto& result) {
      return result.alias_info() != nullptr && !result.alias_info()->isWrite();
    });
  }

  /// Whether sizes or values on the host depend on what is in the memory: CUDA
  /// synchronizes too.
  bool needs_values() const {
    static const std::set<std::string> kNames = {
        "aten::_local_scalar_dense",
        "aten::bincount",
        "aten::equal",
        "aten::masked_select",
        "aten::nonzero",
        "aten::repeat_interleave",
        "aten::unique_consecutive",
        "aten::unique_dim",
        "aten::_unique",
        "aten::_unique2"};
    if (kNames.count(op_.schema().name()) != 0) {
      return true;
    }
    if (op_.schema().name().find("index") == std::string::npos) {
      return false;
    }
    bool has_mask = false;
    for_each_tensor([&](const at::Tensor& tensor, size_t argument) {
      has_mask =
          has_mask || (tensor.defined() && arguments_[argument].isList() &&
                       (tensor.scalar_type() == at::kBool ||
                        tensor.scalar_type() == at::kByte));
    });
    return has_mask;
  }

  /// The arguments with other tensors, on the CPU.
  torch::jit::Stack with(const Replace& replace) const {
    torch::jit::Stack result;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const c10::IValue& value = arguments_[i];
      if (value.isTensor()) {
        result.emplace_back(replace(value.toTensor(), i));
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorList()) {
          list.push_back(replace(tensor, i));
        }
        result.emplace_back(std::move(list));
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& tensor :
             value.toOptionalTensorList()) {
          list.push_back(
              tensor ? std::optional(replace(*tensor, i)) : std::nullopt);
        }
        result.emplace_back(std::move(list));
      } else if (value.isDevice() && value.toDevice().type() == kType) {
        result.emplace_back(c10::Device(c10::kCPU));
      } else {
        result.push_back(value);
      }
    }
    return result;
  }

  /// Replaces this call's arguments on the stack by its results.
  void give(torch::jit::Stack results) {
    torch::jit::drop(stack_, arguments_.size());
    for (c10::IValue& result : results) {
      stack_.push_back(std::move(result));
    }
  }

  /// The argument that a result is, as its annotation says.
  const c10::IValue& argument_returned_as(size_t result) const {
    const auto& returned = *op_.schema().returns()[result].alias_info();
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto* alias = op_.schema().arguments()[i].alias_info();
      if (alias != nullptr && *alias == returned) {
        return arguments_[i];
      }
    }
    TORCH_CHECK(false, "vdev: ", name_, " returns an unknown argument");
  }

  /// A view that the CPU made, over the device's storage again.
  static at::Tensor view_over(
      const at::Tensor& made,
      const at::Tensor& original) {
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW,
        c10::Storage(original.storage()),
        original.key_set(),
        made.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(
        made.sizes(), made.strides(), made.storage_offset());
    return view;
  }

  void run_on_metadata() {
    at::Tensor original;
    auto stack = with([&](const at::Tensor& tensor, size_t) {
      if (!is_here(tensor)) {
        return tensor;
      }
      original = original.defined() ? original : tensor;
      // Without its memory, which a sharded parameter does not have.
      return cpu_tensor(
          borrowed_storage(nullptr, tensor.storage().nbytes()),
          tensor.dtype(),
          tensor.sizes(),
          tensor.strides(),
          tensor.storage_offset());
    });
    call_cpu(op_, stack);
    for (c10::IValue& result : stack) {
      if (result.isTensor()) {
        result = view_over(result.toTensor(), original);
      } else if (result.isTensorList()) {
        c10::List<at::Tensor> views;
        for (const at::Tensor& made : result.toTensorList()) {
          views.push_back(view_over(made, original));
        }
        result = std::move(views);
      }
    }
    give(std::move(stack));
  }

  /// The call of the CPU's kernel, without what the calling thread has
  /// switched on.
  static void call_cpu(
      const c10::OperatorHandle& op,
      torch::jit::Stack& stack) {
    const c10::impl::ForceDispatchKeyGuard keys(
        c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
        c10::autograd_dispatch_keyset_with_ADInplaceOrView |
            c10::autocast_dispatch_keyset);
    const at::DisableRecordFunctionGuard unobserved;
    // Kernels with several outputs return references to their arguments, which
    // the stack drops first.
    const torch::jit::Stack kept = stack;
    op.callBoxed(&stack);
  }

  static at::Tensor new_on_device(const at::Tensor& value, c10::Device on) {
    return value.defined() ? empty_like_on(value, on) : at::Tensor();
  }

  void run_synchronously() {
    bool has_device_tensor = false;
    std::vector<Access> accesses;
    for_each_tensor([&](const at::Tensor& tensor, size_t argument) {
      if (is_here(tensor)) {
        has_device_tensor = true;
        check_live(tensor, name_);
        add_accesses(accesses, tensor, is_written(argument));
      }
    });
    const c10::Stream stream =
        c10::impl::getDeviceGuardImpl(kType)->getStream(device_);
    Runtime::instance().issue(
        stream,
        {.name = name_,
         .accesses = std::move(accesses),
         .run = [](bool) { return true; },
         .also_after = {}});
    Runtime::instance().synchronize(stream, name_);
    auto stack = with([](const at::Tensor& tensor, size_t) {
      return is_here(tensor) ? Captured(tensor).on_host() : tensor;
    });
    call_cpu(op_, stack);
    for (size_t i = 0; i < stack.size(); ++i) {
      const auto* alias = op_.schema().returns()[i].alias_info();
      if (alias != nullptr) {
        stack[i] = argument_returned_as(i);
      } else if (stack[i].isTensor() && stack[i].toTensor().defined()) {
        const at::Tensor value = stack[i].toTensor();
        const at::Tensor result = new_on_device(value, device_);
        const c10::impl::ExcludeDispatchKeyGuard below(
            c10::autograd_dispatch_keyset_with_ADInplaceOrView);
        issue_constant(stream, result, value);
        stack[i] = result;
      }
    }
    give(std::move(stack));
  }

  /// A result that is there already, as a kernel would write it.
  void issue_constant(
      const c10::Stream& stream,
      const at::Tensor& into,
      const at::Tensor& value) const {
    Command command{.name = name_, .accesses = {}, .run = {}, .also_after = {}};
    add_accesses(command.accesses, into, true);
    command.run = [target = Captured(into), value](bool) {
      target.on_host().copy_(value);
      return true;
    };
    Runtime::instance().issue(stream, std::move(command));
  }

  bool is_random() const {
    return op_.hasTag(at::Tag::nondeterministic_seeded) ||
           std::any_of(
               op_.schema().arguments().begin(),
               op_.schema().arguments().end(),
               [](const c10::Argument& argument) {
                 return argument.name() == "generator";
               });
  }

  /// Takes the seed of a random operator from the generator it was given, which
  /// is dropped from the arguments.
  std::optional<uint64_t> take_seed() {
    if (!is_random()) {
      return std::nullopt;
    }
    at::Generator generator = default_generator(device_.index());
    for (c10::IValue& argument : arguments_) {
      if (argument.isGenerator()) {
        generator = argument.toGenerator();
        argument = c10::IValue();
      }
    }
    return at::check_generator<Generator>(generator)->take_seed();
  }

  /// With the CPU's generator set to a seed while it lives.
  class SeedScope {
   public:
    explicit SeedScope(std::optional<uint64_t> seed) {
      if (seed) {
        before_ = at::detail::getDefaultCPUGenerator();
        const std::lock_guard lock(before_.mutex());
        state_ = before_.get_state();
        before_.set_current_seed(*seed);
      }
    }
    ~SeedScope() {
      if (before_.defined()) {
        const std::lock_guard lock(before_.mutex());
        before_.set_state(state_);
      }
    }
    SeedScope(const SeedScope&) = delete;
    SeedScope& operator=(const SeedScope&) = delete;

   private:
    at::Generator before_;
    at::Tensor state_;
  };

  /// Zeros in the places of the arguments, with the same aliases.
  class Zeros {
   public:
    at::Tensor of(const at::Tensor& tensor) {
      const Captured captured(tensor);
      auto& storage = made_[tensor.storage().unsafeGetStorageImpl()];
      if (!storage) {
        // Pages that are not read cost nothing.
        void* data =
            std::calloc(std::max<size_t>(captured.storage_bytes, 1), 1);
        storage = c10::Storage(
            c10::Storage::use_byte_size_t{},
            captured.storage_bytes,
            c10::DataPtr(data, data, &std::free, c10::kCPU),
            c10::GetAllocator(c10::kCPU),
            /*resizable=*/true);
      }
      return cpu_tensor(
          storage,
          captured.dtype,
          captured.sizes,
          captured.strides,
          captured.offset);
    }
    /// The device tensor with the storage of which `zeros` was made.
    const c10::StorageImpl* original_of(const at::Tensor& zeros) const {
      for (const auto& [original, storage] : made_) {
        if (zeros.storage().is_alias_of(storage)) {
          return original;
        }
      }
      return nullptr;
    }

   private:
    std::map<const c10::StorageImpl*, c10::Storage> made_;
  };

  bool refuses_zeros() const {
    const std::string& name = op_.schema().name();
    return name == "aten::multinomial" || name == "aten::_assert_async";
  }

  /// What the results are like. Resizes `out` arguments.
  torch::jit::Stack rehearse(const std::optional<uint64_t>& seed) {
    Zeros zeros;
    std::vector<std::pair<at::Tensor, at::Tensor>> written;
    auto stack = with([&](const at::Tensor& tensor, size_t argument) {
      if (!is_here(tensor)) {
        return tensor.defined() && is_written(argument) ? tensor.clone()
                                                        : tensor;
      }
      at::Tensor zero = zeros.of(tensor);
      if (refuses_zeros()) {
        zero.fill_(1);
      }
      if (is_written(argument)) {
        written.emplace_back(tensor, zero);
      }
      return zero;
    });
    {
      const SeedScope scope(seed);
      call_cpu(op_, stack);
    }
    for (auto& [tensor, zero] : written) {
      if (tensor.sizes() != zero.sizes() ||
          tensor.strides() != zero.strides()) {
        resize_storage(
            *tensor.storage().unsafeGetStorageImpl(), zero.storage().nbytes());
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
            zero.sizes(), zero.strides(), zero.storage_offset());
      }
    }
    for (const c10::IValue& result : stack) {
      TORCH_CHECK(
          !result.isTensor() || !result.toTensor().defined() ||
              !result.toTensor().has_storage() ||
              zeros.original_of(result.toTensor()) == nullptr ||
              returns_arguments(),
          "vdev: ",
          name_,
          " returns a view without saying so");
    }
    return stack;
  }

  bool returns_arguments() const {
    const auto& returns = op_.schema().returns();
    return std::any_of(returns.begin(), returns.end(), [](const auto& result) {
      return result.alias_info() != nullptr;
    });
  }

  void run_on_stream() {
    for_each_tensor([&](const at::Tensor& tensor, size_t) {
      if (is_here(tensor)) {
        check_live(tensor, name_);
        TORCH_CHECK(
            tensor.device() == device_,
            "vdev: ",
            name_,
            " has arguments on ",
            device_,
            " and on ",
            tensor.device());
      }
    });
    const auto seed = take_seed();
    torch::jit::Stack results = rehearse(seed);

    Command command{.name = name_, .accesses = {}, .run = {}, .also_after = {}};
    std::vector<std::pair<size_t, Captured>> targets; // by result
    for (size_t i = 0; i < results.size(); ++i) {
      if (op_.schema().returns()[i].alias_info() != nullptr) {
        results[i] = argument_returned_as(i);
      } else if (results[i].isTensor() && results[i].toTensor().defined()) {
        const at::Tensor result = new_on_device(results[i].toTensor(), device_);
        targets.emplace_back(i, Captured(result));
        add_accesses(command.accesses, result, true);
        results[i] = result;
      } else if (results[i].isTensorList()) {
        TORCH_CHECK(false, "vdev: ", name_, " returns a list");
      }
    }
    for_each_tensor([&](const at::Tensor& tensor, size_t argument) {
      if (is_here(tensor)) {
        add_accesses(command.accesses, tensor, is_written(argument));
      }
    });
    // Of the host only small tensors are taken, and by value.
    auto arguments = std::make_shared<torch::jit::Stack>(
        with([&](const at::Tensor& tensor, size_t) {
          if (!tensor.defined()) {
            return tensor;
          }
          if (is_here(tensor)) {
            return Captured(tensor).on_host();
          }
          TORCH_CHECK(
              tensor.dim() == 0,
              "vdev: ",
              name_,
              " has arguments on ",
              device_,
              " and on the CPU");
          at::Tensor copy = tensor.detach().clone();
          copy.unsafeGetTensorImpl()->set_wrapped_number(
              tensor.unsafeGetTensorImpl()->is_wrapped_number());
          return copy;
        }));
    command.run = [op = op_, arguments, targets, seed](bool) {
      const SeedScope scope(seed);
      torch::jit::Stack stack = *arguments; // see call_cpu()
      op.callBoxed(&stack);
      for (const auto& [result, target] : targets) {
        target.on_host().copy_(stack[result].toTensor());
      }
      return true;
    };
    Runtime::instance().issue(
        c10::impl::getDeviceGuardImpl(kType)->getStream(device_),
        std::move(command));
    give(std::move(results));
  }

  c10::OperatorHandle op_;
  torch::jit::Stack& stack_;
  std::string name_;
  std::vector<c10::IValue> arguments_;
  c10::Device device_{kType, 0};
};

void fallback(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
  Call(op, *stack).run();
}

c10::Device resolved(std::optional<c10::Device> wanted) {
  return wanted && wanted->has_index()
             ? *wanted
             : c10::impl::getDeviceGuardImpl(kType)->getDevice();
}

at::Tensor empty_memory_format(
    at::IntArrayRef sizes,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<c10::Device> wanted,
    std::optional<bool> /*pin_memory*/,
    std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(resolved(wanted));
  return at::detail::empty_generic(
      sizes,
      &DeviceMemory::instance(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype),
      format);
}

at::Tensor empty_strided(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<c10::Device> wanted,
    std::optional<bool> /*pin_memory*/) {
  const c10::DeviceGuard guard(resolved(wanted));
  return at::detail::empty_strided_generic(
      sizes,
      strides,
      &DeviceMemory::instance(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

/// Between host and device, in the current stream of the device.
at::Tensor& copy_(
    at::Tensor& self,
    const at::Tensor& source,
    bool non_blocking) {
  if (self.numel() == 0) {
    return self;
  }
  const bool to_device = is_here(self);
  const bool from_device = is_here(source);
  const at::Tensor& here = to_device ? self : source;
  const c10::Stream stream = stream_of(here);
  const at::Tensor from = source.expand(self.sizes());
  Command command{
      .name = !from_device ? "copy_ to the device"
              : !to_device ? "copy_ to the host"
                           : "copy_",
      .accesses = {},
      .run = {},
      .also_after = {}};
  if (to_device && from_device) {
    if (self.device() != source.device()) {
      // As CUDA: after both devices' current streams.
      const c10::Stream other = stream_of(source);
      Runtime::instance().wait_in_stream(
          other.device() == stream.device() ? stream : other,
          Runtime::instance().record(stream));
      Runtime::instance().wait_in_stream(
          stream, Runtime::instance().record(other));
    }
    check_live(self, command.name);
    check_live(source, command.name);
    add_accesses(command.accesses, self, true);
    add_accesses(command.accesses, from, false);
    command.run = [to = Captured(self), from = Captured(from)](bool) {
      to.on_host().copy_(from.on_host());
      return true;
    };
    Runtime::instance().issue(stream, std::move(command));
    return self;
  }
  check_live(here, command.name);
  const at::Tensor& host = to_device ? source : self;
  const bool is_pinned =
      PinnedMemory::instance().contains(host.const_data_ptr());
  add_accesses(command.accesses, to_device ? self : from, to_device);
  if (is_pinned) {
    add_accesses(command.accesses, host, !to_device);
  } else {
    Runtime::instance().count_pageable_copy();
  }
  if (to_device) {
    // What is pageable is staged when it is issued.
    command.run = is_pinned
                      ? std::function<bool(bool)>(
                            [to = Captured(self), from = Captured(from)](bool) {
                              to.on_host().copy_(from.on_host());
                              return true;
                            })
                      : [to = Captured(self), from = from.clone()](bool) {
                          to.on_host().copy_(from);
                          return true;
                        };
  } else {
    command.run = [to = Captured(self), from = Captured(from)](bool) {
      to.on_host().copy_(from.on_host());
      return true;
    };
    std::vector<Access> accesses;
    add_accesses(accesses, self, true);
    const bool is_unused =
        std::all_of(accesses.begin(), accesses.end(), [](const Access& access) {
          return Runtime::instance().pending_use(access.range).empty();
        });
    if (is_unused && self.is_non_overlapping_and_dense()) {
      // So that it is noticed when the host reads it too early.
      std::memset(self.mutable_data_ptr(), kPoison, self.nbytes());
    }
  }
  const std::string name = command.name;
  Runtime::instance().issue(stream, std::move(command));
  if (!non_blocking || (!is_pinned && !to_device)) {
    Runtime::instance().synchronize(stream, name);
  } else if (!is_pinned) {
    // cudaMemcpyAsync() from pageable memory waits for the stream.
    Runtime::instance().synchronize(stream, name + " from pageable memory");
  }
  return self;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  check_live(self, "aten::_local_scalar_dense");
  Command command{
      .name = "aten::_local_scalar_dense",
      .accesses = {},
      .run = [](bool) { return true; },
      .also_after = {}};
  add_accesses(command.accesses, self, false);
  const c10::Stream stream = stream_of(self);
  Runtime::instance().issue(stream, std::move(command));
  Runtime::instance().synchronize(stream, "aten::_local_scalar_dense");
  return Captured(self).on_host().item();
}

const at::Tensor& resize_(
    const at::Tensor& self,
    at::IntArrayRef sizes,
    std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(
      !format || *format == at::MemoryFormat::Contiguous,
      "vdev: resize_ to another memory format");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      sizes, self.itemsize(), static_cast<size_t>(self.storage_offset()));
  resize_storage(*impl->unsafe_storage().unsafeGetStorageImpl(), bytes);
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self,
    at::Storage source,
    int64_t offset,
    at::IntArrayRef sizes,
    at::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (strides.empty() && !sizes.empty()) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

at::Tensor& set_full_storage(at::Tensor& self, at::Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {numel}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(
      self,
      source.storage(),
      source.storage_offset(),
      source.sizes(),
      source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  return set_storage(
      self,
      c10::Storage(
          c10::Storage::use_byte_size_t{},
          0,
          DeviceMemory::instance().allocate(0),
          &DeviceMemory::instance(),
          /*resizable=*/true),
      0,
      {0},
      {1});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  DeviceMemory::instance().recordStream(self.storage().data_ptr(), stream);
}

/// Correctly rounded, as on CUDA; the CPU's is not on every processor.
at::Tensor& sqrt_out(const at::Tensor& self, at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  Command command{
      .name = "aten::sqrt.out", .accesses = {}, .run = {}, .also_after = {}};
  add_accesses(command.accesses, self, false);
  add_accesses(command.accesses, out, true);
  command.run = [from = Captured(self), to = Captured(out)](bool) {
    const at::Tensor roots =
        from.on_host().contiguous().to(at::kDouble, false, /*copy=*/true);
    auto* values = roots.mutable_data_ptr<double>();
    for (int64_t i = 0; i < roots.numel(); ++i) {
      values[i] = std::sqrt(values[i]);
    }
    to.on_host().copy_(roots);
    return true;
  };
  Runtime::instance().issue(stream_of(out), std::move(command));
  return out;
}

using Tensors = std::vector<at::Tensor>;

/// Appends `compute`, a function of CPU tensors, to the current stream.
/// @param inputs of the device; some may be undefined.
Tensors issue_computed(
    const char* name,
    const Tensors& inputs,
    const std::function<Tensors(const Tensors&)>& compute) {
  // Nothing of the calling thread: neither autograd nor modes.
  const c10::impl::ForceDispatchKeyGuard keys(
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
          c10::autocast_dispatch_keyset);
  const c10::DeviceGuard guard(inputs.front().device());
  Command command{.name = name, .accesses = {}, .run = {}, .also_after = {}};
  Tensors zeros;
  std::vector<std::optional<Captured>> sources;
  for (const at::Tensor& input : inputs) {
    zeros.emplace_back();
    sources.emplace_back();
    if (input.defined()) {
      check_live(input, name);
      add_accesses(command.accesses, input, false);
      zeros.back() = at::zeros(input.sizes(), input.options().device(at::kCPU));
      sources.back().emplace(input);
    }
  }
  Tensors results;
  std::vector<std::optional<Captured>> targets;
  for (const at::Tensor& like : compute(zeros)) {
    results.emplace_back();
    targets.emplace_back();
    if (like.defined()) {
      results.back() = empty_like_on(like, inputs.front().device());
      targets.back().emplace(results.back());
      add_accesses(command.accesses, results.back(), true);
    }
  }
  command.run = [sources, targets, compute](bool) {
    Tensors values;
    for (const auto& source : sources) {
      values.push_back(source ? source->on_host() : at::Tensor());
    }
    const Tensors made = compute(values);
    for (size_t i = 0; i < made.size(); ++i) {
      if (targets[i]) {
        targets[i]->on_host().copy_(made[i]);
      }
    }
    return true;
  };
  Runtime::instance().issue(stream_of(inputs.front()), std::move(command));
  return results;
}

at::Tensor convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool transposed,
    at::IntArrayRef output_padding,
    int64_t groups) {
  return issue_computed(
      "aten::convolution",
      {input, weight, bias.value_or(at::Tensor())},
      [=,
       stride = stride.vec(),
       padding = padding.vec(),
       dilation = dilation.vec(),
       output_padding = output_padding.vec()](const Tensors& t) {
        return Tensors{at::convolution(
            t[0],
            t[1],
            t[2],
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups)};
      })[0];
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const at::Tensor& weight,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool transposed,
    at::IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> wanted) {
  const Tensors made = issue_computed(
      "aten::convolution_backward",
      {gradient, input, weight},
      [=,
       stride = stride.vec(),
       padding = padding.vec(),
       dilation = dilation.vec(),
       output_padding = output_padding.vec()](const Tensors& t) {
        const int64_t bias = t[0].size(1);
        auto [of_input, of_weight, of_bias] = at::convolution_backward(
            t[0],
            t[1],
            t[2],
            at::IntArrayRef(bias),
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            wanted);
        return Tensors{of_input, of_weight, of_bias};
      });
  return {made[0], made[1], made[2]};
}

/// Attention by matrix products: the CPU's fused kernels ask for CPU tensors.
int64_t fused_sdp_choice(
    const at::Tensor& /*query*/,
    const at::Tensor& /*key*/,
    const at::Tensor& /*value*/,
    const std::optional<at::Tensor>& /*mask*/,
    double /*dropout*/,
    bool /*is_causal*/,
    std::optional<double> /*scale*/,
    bool /*enable_gqa*/) {
  return 0;
}

} // namespace

void add_accesses(
    std::vector<Access>& accesses,
    const at::Tensor& tensor,
    bool is_write) {
  if (tensor.numel() == 0) {
    return;
  }
  std::vector<Range> ranges;
  add_ranges(
      ranges,
      address_of(tensor),
      tensor.sizes(),
      tensor.strides(),
      tensor.itemsize(),
      /*budget=*/256);
  for (const Range& range : ranges) {
    accesses.push_back({range, is_write});
  }
}

at::Tensor on_host(const at::Tensor& tensor) {
  return Captured(tensor).on_host();
}

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  if (bytes <= storage.nbytes()) {
    return;
  }
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr grown = DeviceMemory::instance().allocate(bytes);
  if (storage.nbytes() > 0 && storage.data() != nullptr) {
    const size_t kept = storage.nbytes();
    const auto begin = reinterpret_cast<uintptr_t>(storage.data());
    const auto into = reinterpret_cast<uintptr_t>(grown.get());
    Runtime::instance().issue(
        c10::impl::getDeviceGuardImpl(kType)->getStream(storage.device()),
        {.name = "resize of a storage",
         .accesses =
             {{{begin, begin + kept}, false}, {{into, into + kept}, true}},
         .run =
             [to = grown.get(), from = storage.data(), kept](bool) {
               std::memcpy(to, from, kept);
               return true;
             },
         .also_after = {}});
  }
  storage.set_data_ptr_noswap(std::move(grown));
  storage.set_nbytes(bytes);
}

void run_by_fallback(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  Call(op, stack).run();
}

void install_operators() {
  // Never destroyed: tensors are freed at exit.
  static auto* const kFallback = new torch::Library(
      torch::Library::IMPL,
      "_",
      c10::DispatchKey::PrivateUse1,
      __FILE__,
      __LINE__);
  kFallback->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  static auto* const kOwn = new torch::Library(
      torch::Library::IMPL,
      "aten",
      c10::DispatchKey::PrivateUse1,
      __FILE__,
      __LINE__);
  kOwn->impl("empty.memory_format", &empty_memory_format);
  kOwn->impl("empty_strided", &empty_strided);
  kOwn->impl("copy_", &copy_);
  // What LibTorch's copy_() calls, where another takes the place of the first.
  kOwn->impl(
      "_copy_from",
      [](const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
        at::Tensor target = to;
        return copy_(target, from, non_blocking);
      });
  kOwn->impl("_local_scalar_dense", &local_scalar_dense);
  kOwn->impl("resize_", &resize_);
  kOwn->impl("set_.source_Storage_storage_offset", &set_storage);
  kOwn->impl("set_.source_Storage", &set_full_storage);
  kOwn->impl("set_.source_Tensor", &set_tensor);
  kOwn->impl("set_", &set_empty);
  kOwn->impl("record_stream", &record_stream);
  kOwn->impl("_fused_sdp_choice", &fused_sdp_choice);
  kOwn->impl("sqrt.out", &sqrt_out);
  kOwn->impl("convolution_overrideable", &convolution);
  kOwn->impl("convolution_backward_overrideable", &convolution_backward);
  // Not as LibTorch composes them for unknown devices.
  for (const char* name : {"native_layer_norm", "native_group_norm"}) {
    kOwn->impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

} // namespace tessera::tests::vdev

// SPDX-License-Identifier: Apache-2.0
// The globals that pickles of tensors may ask for.
#include <algorithm>
#include <array>

#include "tessera/runtime/io/torch_file.h"

namespace tessera::runtime {

namespace {

struct DtypeRow {
  std::string_view name; ///< of the dtype, "torch.float32"
  std::string_view storage; ///< of its typed storage; empty if it has none
  std::optional<SafetensorsDtype> dtype;
};

constexpr std::array kDtypeRows{
    DtypeRow{"torch.float32", "torch.FloatStorage", SafetensorsDtype::kF32},
    DtypeRow{"torch.float64", "torch.DoubleStorage", SafetensorsDtype::kF64},
    DtypeRow{"torch.float16", "torch.HalfStorage", SafetensorsDtype::kF16},
    DtypeRow{
        "torch.bfloat16",
        "torch.BFloat16Storage",
        SafetensorsDtype::kBF16},
    DtypeRow{"torch.int64", "torch.LongStorage", SafetensorsDtype::kI64},
    DtypeRow{"torch.int32", "torch.IntStorage", SafetensorsDtype::kI32},
    DtypeRow{"torch.int16", "torch.ShortStorage", SafetensorsDtype::kI16},
    DtypeRow{"torch.int8", "torch.CharStorage", SafetensorsDtype::kI8},
    DtypeRow{"torch.uint8", "torch.ByteStorage", SafetensorsDtype::kU8},
    DtypeRow{"torch.bool", "torch.BoolStorage", SafetensorsDtype::kBool},
    DtypeRow{"torch.uint16", "", SafetensorsDtype::kU16},
    DtypeRow{"torch.uint32", "", SafetensorsDtype::kU32},
    DtypeRow{"torch.uint64", "", SafetensorsDtype::kU64},
    DtypeRow{"torch.float8_e4m3fn", "", SafetensorsDtype::kF8E4M3},
    DtypeRow{"torch.float8_e5m2", "", SafetensorsDtype::kF8E5M2},
    DtypeRow{"torch.float8_e8m0fnu", "", SafetensorsDtype::kF8E8M0},
    DtypeRow{"torch.complex64", "torch.ComplexFloatStorage", std::nullopt},
    DtypeRow{"torch.complex128", "torch.ComplexDoubleStorage", std::nullopt},
};

constexpr std::array<std::string_view, 54> kListed{
    // They make tensors and what is in them.
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._tensor._rebuild_from_type_v2",
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "torch.storage.UntypedStorage",
    "torch.Size",
    "torch.device",
    "torch.serialization._get_layout",
    // Containers and plain values.
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.Counter",
    "builtins.set",
    "builtins.frozenset",
    "builtins.dict",
    "builtins.list",
    "builtins.tuple",
    "builtins.int",
    "builtins.float",
    "builtins.str",
    "builtins.bytes",
    "builtins.bytearray",
    "builtins.bool",
    "builtins.complex",
    "builtins.slice",
    "builtins.object",
    "__builtin__.set",
    "__builtin__.frozenset",
    "__builtin__.dict",
    "__builtin__.list",
    "__builtin__.object",
    "__builtin__.bytearray",
    "_codecs.encode",
    "_io.BytesIO",
    "copyreg._reconstructor",
    "copy_reg._reconstructor",
    // Records of trainers.
    "argparse.Namespace",
    "types.SimpleNamespace",
    "signal.Signals",
    "datetime.timedelta",
    "datetime.datetime",
    "pathlib.Path",
    "pathlib.PosixPath",
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "torch.strided",
    "torch.contiguous_format",
};

/// Packages of trainers, whose records stay what they are: nothing of them is
/// imported.
constexpr std::array<std::string_view, 3> kListedPackages{
    "deepspeed.",
    "megatron.",
    "torch.distributed.checkpoint.",
};

} // namespace

bool is_tensor_global(std::string_view global) {
  return std::find(kListed.begin(), kListed.end(), global) != kListed.end() ||
         std::any_of(
             kListedPackages.begin(),
             kListedPackages.end(),
             [&](std::string_view package) {
               return global.starts_with(package);
             }) ||
         std::any_of(
             kDtypeRows.begin(), kDtypeRows.end(), [&](const DtypeRow& row) {
               return global == row.name || global == row.storage;
             });
}

std::optional<SafetensorsDtype> dtype_of_global(std::string_view global) {
  for (const DtypeRow& row : kDtypeRows) {
    if (global == row.name || global == row.storage) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

} // namespace tessera::runtime

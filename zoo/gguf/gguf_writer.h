// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GgufWriter` writes GGUF files (version 3), as llama.cpp reads them: a header
// of typed entries and of the names, shapes and offsets of tensors, then
// aligned data. Little-endian. Format:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

#include "tessera/runtime/io/atomic_file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::zoo {

/// Element types, with ggml's numbers.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ8_0 = 8, ///< blocks of 32 elements of a row: a float16 scale and 32 int8
};

/// "F32", "F16", "Q8_0"
const char* name_of(GgufType type);

inline constexpr int64_t kQ8BlockNumel = 32;
inline constexpr int64_t kQ8BlockBytes = 34;

using GgufValue = std::variant<
    bool,
    uint32_t,
    float,
    std::string,
    std::vector<int32_t>,
    std::vector<float>,
    std::vector<std::string>>;

/// The entries of the header, in file order.
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  /// as in LibTorch: the last dimension is contiguous
  std::vector<int64_t> shape;

  int64_t bytes() const;
};

/// Writes a file whose header is known in advance; tensors follow in any order.
/// The file appears under its final name at commit(); without it, nothing is
/// left behind. Used by one thread; blocks on the disk. Every operation throws
/// Error naming the file and the tensor.
class GgufWriter {
 public:
  /// Allocates the whole file, so that a full disk is detected here.
  GgufWriter(
      const std::filesystem::path& path,
      const GgufMetadata& metadata,
      const std::vector<GgufTensor>& tensors);

  /// Writes a whole tensor, once; or one of `slices` equal slices of it along
  /// the first dimension, each once.
  void write(
      std::string_view name,
      std::span<const std::byte> data,
      int64_t slice = 0,
      int64_t slices = 1);

  /// @throws Error if a tensor has not been written.
  void commit();

 private:
  struct Slot {
    uint64_t offset = 0; ///< from the start of the file
    uint64_t bytes = 0;
    uint64_t written = 0; ///< bytes
  };

  runtime::AtomicFile file_;
  std::map<std::string, Slot, std::less<>> slots_;
};

} // namespace tessera::zoo

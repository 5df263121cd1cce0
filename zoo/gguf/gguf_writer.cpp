// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/gguf/gguf_writer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/round_up.h"

#include <bit>
#include <cstring>
#include <type_traits>

namespace tessera::zoo {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32; // unless an entry overrides it

/// The numbers of value types.
enum ValueType : uint32_t {
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
};

class Header {
 public:
  void add_bytes(const void* data, size_t bytes) {
    text_.append(static_cast<const char*>(data), bytes);
  }

  template <typename Number>
  void add(Number number) {
    static_assert(std::is_arithmetic_v<Number>);
    add_bytes(&number, sizeof(number));
  }

  void add(const std::string& text) {
    add(static_cast<uint64_t>(text.size()));
    add_bytes(text.data(), text.size());
  }

  void add_value(bool value) {
    add<uint32_t>(kBool);
    add(static_cast<uint8_t>(value));
  }
  void add_value(uint32_t value) {
    add<uint32_t>(kUint32);
    add(value);
  }
  void add_value(float value) {
    add<uint32_t>(kFloat32);
    add(value);
  }
  void add_value(const std::string& value) {
    add<uint32_t>(kString);
    add(value);
  }
  void add_value(const std::vector<int32_t>& values) {
    add_array(kInt32, values);
  }
  void add_value(const std::vector<float>& values) {
    add_array(kFloat32, values);
  }
  void add_value(const std::vector<std::string>& values) {
    add_array(kString, values);
  }

  const std::string& text() const {
    return text_;
  }

 private:
  template <typename Element>
  void add_array(ValueType type, const std::vector<Element>& values) {
    add<uint32_t>(kArray);
    add<uint32_t>(type);
    add(static_cast<uint64_t>(values.size()));
    for (const Element& value : values) {
      add(value);
    }
  }

  std::string text_;
};

} // namespace

const char* name_of(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return "F32";
    case GgufType::kF16:
      return "F16";
    case GgufType::kQ8_0:
      return "Q8_0";
  }
  TESSERA_FAIL("a GGUF type has no name");
}

int64_t GgufTensor::bytes() const {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    numel *= size;
  }
  switch (type) {
    case GgufType::kF32:
      return numel * 4;
    case GgufType::kF16:
      return numel * 2;
    case GgufType::kQ8_0:
      TESSERA_CHECK(
          !shape.empty() && shape.back() % kQ8BlockNumel == 0,
          "the tensor '{}' cannot be Q8_0: its row length is not a multiple of {} elements",
          name,
          kQ8BlockNumel);
      return numel / kQ8BlockNumel * kQ8BlockBytes;
  }
  TESSERA_FAIL("a GGUF type has no size");
}

GgufWriter::GgufWriter(
    const std::filesystem::path& path,
    const GgufMetadata& metadata,
    const std::vector<GgufTensor>& tensors)
    : file_(path) {
  Header header;
  header.add_bytes("GGUF", 4);
  header.add(kVersion);
  header.add(static_cast<uint64_t>(tensors.size()));
  header.add(static_cast<uint64_t>(metadata.size()));
  for (const auto& [key, value] : metadata) {
    header.add(key);
    std::visit([&](const auto& one) { header.add_value(one); }, value);
  }
  uint64_t end = 0; // of the data so far
  for (const GgufTensor& tensor : tensors) {
    header.add(tensor.name);
    header.add(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      header.add(static_cast<uint64_t>(tensor.shape[i]));
    }
    header.add(static_cast<uint32_t>(tensor.type));
    header.add(end);
    const auto bytes = static_cast<uint64_t>(tensor.bytes());
    const bool is_new = slots_.emplace(tensor.name, Slot{end, bytes, 0}).second;
    TESSERA_CHECK(
        is_new, "{}: there are two tensors named '{}'", path, tensor.name);
    end = runtime::round_up(end + bytes, kAlignment);
  }
  const uint64_t begin =
      runtime::round_up<uint64_t>(header.text().size(), kAlignment);
  for (auto& [name, slot] : slots_) {
    slot.offset += begin;
  }
  file_.reserve(begin + end);
  file_.write_at(0, std::as_bytes(std::span(header.text())));
}

void GgufWriter::write(
    std::string_view name,
    std::span<const std::byte> data,
    int64_t slice,
    int64_t slices) {
  const auto slot = slots_.find(name);
  TESSERA_CHECK(
      slot != slots_.end() && slot->second.written < slot->second.bytes,
      "{}: the tensor '{}' is not in the header, or has already been written",
      file_.path(),
      name);
  const uint64_t bytes = slot->second.bytes / static_cast<uint64_t>(slices);
  TESSERA_CHECK(
      data.size() == bytes && slice < slices,
      "{}: the tensor '{}' has {} bytes; the header says {}",
      file_.path(),
      name,
      data.size(),
      bytes);
  file_.write_at(
      slot->second.offset + static_cast<uint64_t>(slice) * bytes, data);
  slot->second.written += bytes;
}

void GgufWriter::commit() {
  for (const auto& [name, slot] : slots_) {
    TESSERA_CHECK(
        slot.written == slot.bytes,
        "{}: the tensor '{}' has not been written",
        file_.path(),
        name);
  }
  file_.commit();
}

} // namespace tessera::zoo

// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/zip_directory.h"

#include <algorithm>
#include <array>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/byte_reader.h"

namespace tessera::runtime {

namespace {

using Bytes = std::span<const std::byte>;

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kEntrySignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr size_t kEndBytes = 22;
constexpr size_t kLocator64Bytes = 20;
constexpr uint16_t kZip64Field = 1;
constexpr uint32_t kInZip64 = 0xffffffff;

/// Where the list of entries is.
struct Listing {
  uint64_t count = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;
};

/// Sizes and position of an entry, of which an extra field has the large ones.
struct EntrySizes {
  uint64_t stored = 0;
  uint64_t full = 0;
  uint64_t offset = 0;
};

/// The start of the record that ends an archive; its comment reaches to the
/// end.
size_t end_of_archive(Bytes bytes, std::string_view source) {
  constexpr size_t kMostComment = 0xffff;
  if (bytes.size() >= kEndBytes) {
    const size_t last = bytes.size() - kEndBytes;
    const size_t first = last - std::min(last, kMostComment);
    for (size_t at = last + 1; at-- > first;) {
      ByteReader end(bytes.subspan(at), source);
      if (end.u32() == kEndSignature) {
        end.skip(16);
        if (end.u16() == bytes.size() - at - kEndBytes) {
          return at;
        }
      }
    }
  }
  TESSERA_FAIL(
      "{}: the ZIP archive has no end record among its {} bytes; the file was not written or downloaded completely: fetch it again",
      source,
      bytes.size());
}

Listing find_listing(Bytes bytes, std::string_view source) {
  const size_t at = end_of_archive(bytes, source);
  ByteReader end(bytes.subspan(at), source);
  end.skip(10); // signature, numbers of disks, entries on this disk
  Listing listing;
  listing.count = end.u16();
  listing.bytes = end.u32();
  listing.offset = end.u32();
  if (at < kLocator64Bytes) {
    return listing;
  }
  ByteReader locator(bytes.subspan(at - kLocator64Bytes), source);
  if (locator.u32() != kLocator64Signature) {
    return listing;
  }
  locator.skip(4);
  ByteReader end64(bytes, source);
  end64.skip(locator.u64());
  TESSERA_CHECK(
      end64.u32() == kEnd64Signature,
      "{}: the ZIP64 end record is not where its locator says; the file is damaged: fetch it again",
      source);
  end64.skip(28); // size, versions, disks, entries on this disk
  listing.count = end64.u64();
  listing.bytes = end64.u64();
  listing.offset = end64.u64();
  return listing;
}

/// Replaces the sizes that did not fit by those of the extra field.
void read_extra(ByteReader extra, EntrySizes& sizes) {
  while (extra.left() >= 4) {
    const uint16_t kind = extra.u16();
    ByteReader field = extra.part(extra.u16());
    if (kind != kZip64Field) {
      continue;
    }
    for (uint64_t* size : {&sizes.full, &sizes.stored, &sizes.offset}) {
      if (*size == kInZip64) {
        *size = field.u64();
      }
    }
  }
}

/// The data of an entry, behind its local header.
Bytes data_of(
    Bytes bytes,
    const EntrySizes& sizes,
    const std::string& name,
    std::string_view source) {
  ByteReader local(bytes, source);
  local.skip(sizes.offset);
  TESSERA_CHECK(
      local.u32() == kLocalSignature,
      "{}: '{}' of the ZIP archive is not where its directory says; the file is damaged: fetch it again",
      source,
      name);
  local.skip(22);
  const uint64_t name_bytes = local.u16();
  const uint64_t extra_bytes = local.u16();
  local.skip(name_bytes + extra_bytes);
  TESSERA_CHECK(
      sizes.stored <= local.left(),
      "{}: '{}' of the ZIP archive would be {} bytes long, but only {} follow; the file is damaged: fetch it again",
      source,
      name,
      sizes.stored,
      local.left());
  return local.take(sizes.stored);
}

} // namespace

bool is_zip(Bytes bytes) {
  return bytes.size() >= 4 && ByteReader(bytes, "").u32() == kLocalSignature;
}

ZipDirectory::ZipDirectory(Bytes bytes, std::string_view source)
    : source_(source) {
  const Listing listing = find_listing(bytes, source);
  ByteReader list(bytes, source);
  list.skip(listing.offset);
  list = list.part(listing.bytes);
  for (uint64_t i = 0; i < listing.count; ++i) {
    TESSERA_CHECK(
        list.u32() == kEntrySignature,
        "{}: entry {} of the ZIP directory is malformed; the file is damaged: fetch it again",
        source,
        i);
    list.skip(4);
    const uint16_t flags = list.u16();
    const uint16_t method = list.u16();
    list.skip(4);
    ZipEntry entry;
    entry.crc = list.u32();
    EntrySizes sizes;
    sizes.stored = list.u32();
    sizes.full = list.u32();
    const uint16_t name_bytes = list.u16();
    const uint16_t extra_bytes = list.u16();
    const uint16_t comment_bytes = list.u16();
    list.skip(8);
    sizes.offset = list.u32();
    const std::string name = list.text(name_bytes);
    read_extra(list.part(extra_bytes), sizes);
    list.skip(comment_bytes);
    entry.is_plain =
        method == 0 && sizes.stored == sizes.full && (flags & 1) == 0;
    entry.data = data_of(bytes, sizes, name, source);
    TESSERA_CHECK(
        entries_.emplace(name, entry).second,
        "{}: the ZIP archive has '{}' twice; the file is damaged: fetch it again",
        source,
        name);
  }
}

const ZipEntry* ZipDirectory::find(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return nullptr;
  }
  TESSERA_CHECK(
      found->second.is_plain,
      "{}: '{}' of the ZIP archive is compressed or encrypted; torch.save does neither: save the file again with torch.save, without compressing it",
      source_,
      name);
  return &found->second;
}

uint32_t zip_crc(Bytes bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < made.size(); ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) {
        made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0xedb88320 : 0);
      }
    }
    return made;
  }();
  uint32_t crc = 0xffffffff;
  for (const std::byte byte : bytes) {
    crc = table[(crc ^ std::to_integer<uint32_t>(byte)) & 0xff] ^ crc >> 8;
  }
  return ~crc;
}

} // namespace tessera::runtime

// SPDX-License-Identifier: Apache-2.0
// Pickles as values; nothing of them runs.
#include "tessera/runtime/io/pickle.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "support/expect_error.h"
#include "tessera/runtime/io/torch_file.h"

namespace tessera::runtime::pickle_test {

namespace {

using namespace std::string_literals;

Pickle read(const std::string& text) {
  return {
      std::as_bytes(std::span(text.data(), text.size())),
      "a pickle",
      is_tensor_global};
}

void refuse(const std::string& text, std::initializer_list<const char*> parts) {
  SCOPED_TRACE(text);
  expect_error([&] { read(text); }, {"a pickle"});
  expect_error([&] { read(text); }, parts);
}

} // namespace

TEST(Pickle, HasPlainValues) {
  // pickle.dumps([None, True, -5, 300, 70000, 2**40, 2**70, 1.5, 'a', b'b'])
  // with protocol 2 and 4.
  const std::string two =
      "\x80\x02]q\x00(N\x88J\xfb\xff\xff\xffM,\x01Jp\x11\x01\x00"
      "\x8a\x06\x00\x00\x00\x00\x00\x01"
      "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x40"
      "G?\xf8\x00\x00\x00\x00\x00\x00X\x01\x00\x00\x00"
      "aC\x01"
      "be."s;
  const Pickle pickle = read(two + "rest");
  EXPECT_EQ(pickle.bytes(), two.size());
  const auto& items = pickle.root().items;
  ASSERT_EQ(items.size(), 10u);
  EXPECT_TRUE(pickle.root().is(PickleKind::kList));
  EXPECT_TRUE(items[0]->is(PickleKind::kNone));
  EXPECT_TRUE(items[1]->is(PickleKind::kBool) && items[1]->integer == 1);
  EXPECT_EQ(items[2]->integer, -5);
  EXPECT_EQ(items[3]->integer, 300);
  EXPECT_EQ(items[4]->integer, 70000);
  EXPECT_EQ(items[5]->integer, int64_t{1} << 40);
  EXPECT_EQ(items[6]->text.size(), 9u);
  EXPECT_EQ(items[7]->number, 1.5);
  EXPECT_TRUE(items[8]->is_string("a"));
  EXPECT_TRUE(items[9]->is(PickleKind::kBytes) && items[9]->text == "b");
}

TEST(Pickle, HasTextOfProtocolZero) {
  // pickle.dumps({'a': [True, 7, 2**40, 0.5, u'b', (1, 2)]}, 0), as Python 2.
  const Pickle pickle = read(
      "(dp0\nS'a'\np1\n(lp2\nI01\naI7\naL1099511627776L\naF0.5\naVb\np3\na"
      "(I1\nI2\ntp4\nas.");
  const PickleNode* list = pickle.root().find("a");
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->items.size(), 6u);
  EXPECT_TRUE(list->items[0]->is(PickleKind::kBool));
  EXPECT_EQ(list->items[1]->integer, 7);
  EXPECT_EQ(list->items[2]->integer, int64_t{1} << 40);
  EXPECT_EQ(list->items[3]->number, 0.5);
  EXPECT_TRUE(list->items[4]->is_string("b"));
  EXPECT_EQ(list->items[5]->items[1]->integer, 2);
}

TEST(Pickle, KeepsObjectsAsWhatWouldBeCalled) {
  // argparse.Namespace(size=3), protocol 4, the same value twice.
  const Pickle pickle = read(
      "\x80\x04\x95\x2e\0\0\0\0\0\0\0\x8c\x08"
      "argparse\x94\x8c\x09Namespace\x94\x93\x94)\x81\x94}\x94\x8c\x04"
      "size\x94K\x03sbh\x03\x86\x94."s);
  const auto& items = pickle.root().items;
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0], items[1]);
  EXPECT_EQ(items[0]->made_by(), "argparse.Namespace");
  ASSERT_NE(items[0]->attribute("size"), nullptr);
  EXPECT_EQ(items[0]->attribute("size")->integer, 3);
  EXPECT_EQ(items[0]->attribute("other"), nullptr);
}

TEST(Pickle, RefusesGlobalsThatAreNotListed) {
  for (const char* call : {
           "cos\nsystem\n(S'true'\ntR.",
           "cposix\nsystem\n(S'true'\ntR.",
           "(S'true'\nios\nsystem\n.",
           "(cos\nsystem\nS'true'\no.",
           "\x8c\x02os\x8c\x06system\x93(S'true'\ntR.",
           "cos\nsystem\n(S'true'\nt\x81.",
       }) {
    refuse(call, {"system'", "nothing of it was run", "save its state_dict()"});
  }
  refuse("cbuiltins\neval\n(S'1'\ntR.", {"'builtins.eval'"});
  refuse("cbuiltins\ngetattr\n.", {"'builtins.getattr'"});
  refuse("c__builtin__\nexec\n.", {"'__builtin__.exec'"});
  // A listed name with a part of another.
  refuse("ctorch\n_utils._rebuild_tensor_v2.x\n.", {"is refused"});
  refuse("cdeepspeed_evil\nrun\n.", {"'deepspeed_evil.run'"});
}

TEST(Pickle, RefusesToCallValues) {
  refuse("(S'a'\ntS'b'\nR.", {"would be called"});
  refuse("S'a'\n(S'b'\ntR.", {"the string 'a' would be called"});
  // The result of a listed call is not a function.
  refuse(
      "ccollections\nCounter\n)R)R.",
      {"an object of collections.Counter would be called"});
  refuse("ccollections\nCounter\nN\x81.", {"would be called with None"});
}

TEST(Pickle, RefusesWhatIsMalformed) {
  refuse("", {"ends too early"});
  refuse("N", {"ends too early"});
  refuse(".", {"a value is missing"});
  refuse("(.", {"a value is missing"});
}

TEST(Pickle, NamesPlaces) {
  refuse("t.", {"at byte 0", "no mark"});
  refuse("\x80\x06N.", {"the protocol is 6"});
  refuse("Nh\x05.", {"at byte 1", "value 5 is used before"});
  refuse("Na.", {"a value is missing"});
  refuse("NNa.", {"put into None"});
  refuse("}Ns.", {"a value is missing"});
  refuse("(Nd.", {"a key without a value"});
  refuse("}(Nu.", {"a key without a value"});
  refuse("Ib\n.", {"'b' is not a number"});
  refuse("S'a\\x41'\n.", {"without escapes"});
  refuse("]}b.", {"attributes are given to a list"});
  refuse("\x82\x01.", {"opcode 0x82"}); // a code of an extension registry
  refuse("\x97.", {"opcode 0x97"}); // a buffer outside of the pickle
  refuse("X\xff\xff\xff\x7f"s + "ab.", {"2147483647 more bytes", "3 are left"});
  refuse("\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", {"are left"});
}

} // namespace tessera::runtime::pickle_test

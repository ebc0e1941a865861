// A test harness of one page: TEST registers a case, CHECK counts.
#pragma once

#include <cstdio>

namespace check {

struct Case {
    const char* name;
    void (*body)();
    Case* next;

    Case(const char* name, void (*body)());
};

// Records one outcome; prints it if it failed.
void record(bool passed, const char* text, const char* file, int line);

// Failures recorded so far; a forked child reports them through its exit code.
int failures();

}  // namespace check

#define TEST(NAME)                                             \
    static void NAME##_body();                                 \
    static const check::Case NAME##_case(#NAME, &NAME##_body); \
    static void NAME##_body()

#define CHECK(...) check::record(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

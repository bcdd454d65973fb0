// Runs the tests of the C++ core. Prints what failed, and exits with status 1 if anything did. With the name of an
// instruction set as argument, it checks that the library has chosen it on this machine, and runs a few tests. With a
// number N, it tries every N-th case of the tests that compare numbers: all of them take minutes in an emulator.

#include <cstdlib>

#include "check.h"
#include "tests.h"

int main(int count, char **arguments) {
    const int number = count > 1 ? atoi(arguments[1]) : 1;  // 0 for a name
    if (number == 0) test_isa_in_use(arguments[1]);
    test_isa();
    test_interface();
    if (number > 0) {
        every = number;
        test_number();
        test_forward();
        test_backward();
        test_summary();
    }
    printf("%lld passed, %lld failed\n", (long long)tally.passed, (long long)tally.failed);
    return tally.failed != 0;
}

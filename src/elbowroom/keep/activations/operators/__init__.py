"""What is known of the operators that autograd's nodes stand for, one module a family."""
